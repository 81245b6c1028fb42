"""What can be said of a record: what its readings give, together with what it printed.

A record counts as reproduced only when every reading that can serve the model reproduces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine_layers import resolved, rules_under
from engine_records import Reading, geometry, given, readings

from kvpipe.answers.log_comparison import SEVERAL_RANKS, PrintedCapacity, Reproduction, reproduce
from kvpipe.errors import ConfigError
from kvpipe.logs.figures import Figure
from kvpipe.text.figures import GIB

CHECKS = ("memory vs tokens", "swap blocks", "ratio only", "padding percentages only")
OF_THE_ENGINE = "vllm"


def is_checkable(case: Mapping[str, Any]) -> bool:
    """A vLLM start with a geometry and a number to check."""
    shape = geometry(case)
    heads = {"kv_heads", "kv_heads_sliding", "kv_heads_per_rank", "mla_layers", "mla"}
    # Padding needs the numbers of layers alone.
    enough = heads if case["check_kind"] != "padding percentages only" else {"full_layers"}
    is_vllm = case["engine"].startswith(OF_THE_ENGINE)
    if not shape:
        return False
    known_dtype = case["kv_dtype"] != "nvfp4"  # no dtype of kvpipe's
    return is_vllm and known_dtype and case["check_kind"] in CHECKS and bool(enough & shape.keys())


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """outcome: reproduced (by every reading), ambiguous (by some), ranks (figures of several ranks:
    off by less than they differ), unexplained; identity (printed numbers agree with each other, no
    more can be asked); sizes (SGLang's printed sizes of its own token count); nothing to check."""

    outcome: str
    agreeing: tuple[Reading, ...] = ()
    tried: tuple[Reading, ...] = ()
    detail: str = ""


def printed_of(case: Mapping[str, Any]) -> PrintedCapacity:
    extra = case["extra"] or {}
    memory = case["available_kv_gib"]
    available = Figure.printed(f"{memory:.2f}") if memory is not None else None
    if "available_bytes" in extra:
        available = Figure.exact(extra["available_bytes"])
    pads = extra.get("padding") or []
    if "padding_layers" in extra:
        pads = [{"layers": extra["padding_layers"], "pct": extra["padding_waste_pct"]}]
    needed = case["error_needed_gib"]
    return PrintedCapacity(
        available=available,
        num_gpu_blocks=case["num_gpu_blocks"] or None,
        num_cpu_blocks=case["num_cpu_blocks"],
        kv_tokens=case["kv_tokens"],
        max_concurrency=case["max_concurrency"],
        needed=Figure.printed(f"{needed:.2f}") if needed is not None else None,
        estimated_max_len=case["estimated_max_len"],
        padding=tuple((pad["layers"], pad["pct"]) for pad in pads),
    )


def under(case: Mapping[str, Any], reading: Reading) -> Reproduction:
    """What the release would have printed, by the tool; ConfigError where it refuses the model."""
    run = resolved(case, reading)
    layers = run.ranks[0].layers
    return reproduce(layers, run.limits, rules_under(reading), printed_of(case))


def verdict(case: Mapping[str, Any]) -> Verdict:
    """What can be said of a record."""
    if is_checkable(case):
        return _by_readings(case)
    if case["engine"] == "sglang" and (answer := _sizes_agree(case)) is not None:
        return Verdict(outcome="sizes" if answer else "unexplained")
    if (answer := _agrees_with_itself(case)) is not None:
        return Verdict(outcome="identity" if answer else "unexplained")
    return Verdict(outcome="nothing to check")


def _by_readings(case: Mapping[str, Any]) -> Verdict:
    tried, agreeing = [], []
    results: list[Reproduction] = []
    for reading in readings(case):
        try:
            result = under(case, reading)
        except ConfigError:  # this geometry is no cache of that version
            continue
        if result.problem:  # a release that could not serve this model printed nothing
            continue
        tried.append(reading)
        results.append(result)
        if result.agrees:
            agreeing.append(reading)
    if agreeing:
        outcome = "reproduced" if len(agreeing) == len(tried) else "ambiguous"
        return Verdict(outcome=outcome, agreeing=tuple(agreeing), tried=tuple(tried))
    best = max(results, key=lambda r: sum(t.agrees for t in r.terms), default=None)
    if best is not None and _of_several_ranks(case, best):
        return Verdict(outcome="ranks", tried=tuple(tried), detail=_told(best))
    return Verdict(outcome="unexplained", tried=tuple(tried), detail=_told(best) if best else "")


def _of_several_ranks(case: Mapping[str, Any], result: Reproduction) -> bool:
    """Tokens that stand for a little more or less memory than was printed, with several ranks."""
    several = (given(case, "tp") or 1) > 1
    memory = case["available_kv_gib"]
    if not several or memory is None or result.implied is None:
        return False
    share = result.implied.num_bytes / (memory * GIB)
    return bool(abs(share - 1) < SEVERAL_RANKS)


def _told(result: Reproduction) -> str:
    if result.problem:
        return result.problem
    return "; ".join(
        f"{t.name}: printed {t.printed}, predicted {t.predicted}"
        for t in result.terms
        if not t.agrees
    )


def _near(value: float, printed: float) -> bool:
    """Within the rounding of a figure printed with two decimals, or of a sum of three such."""
    return abs(value - printed) <= 0.0201


def _agrees_with_itself(case: Mapping[str, Any]) -> bool | None:
    """Tokens against concurrency, memory against its parts; None where nothing of it is printed."""
    checks: list[bool] = []
    length, concurrency = given(case, "concurrency_len"), case["max_concurrency"]
    tokens, blocks = case["kv_tokens"], case["num_gpu_blocks"]
    if length and concurrency and (tokens or blocks):
        tokens = tokens or blocks * (given(case, "block_size") or 16)
        checks.append(_near(tokens / length, concurrency))
    parts = [case[name] for name in ("weights_gib", "activation_gib", "non_torch_gib")]
    total, share, left = case["total_gpu_gib"], given(case, "gpu_memory_utilization"), None
    if total and share and None not in parts and case["available_kv_gib"] is not None:
        left = total * share - sum(parts)
        checks.append(_near(left, case["available_kv_gib"]))
    extra = case["extra"] or {}
    if {"avail_after_load_gb", "engine_min_fraction"} <= extra.keys():
        needed = case["weights_gib"] / (case["weights_gib"] + extra["avail_after_load_gb"])
        checks.append(abs(needed / extra["engine_min_fraction"] - 1) < 0.001)
    return all(checks) if checks else None


def _sizes_agree(case: Mapping[str, Any]) -> bool | None:
    """SGLang's printed K, V, latent and state sizes from its own token and slot counts.

    A pool has one page (K, V) or one slot (states) more than it gives out; small pages do not show.
    """
    shape, extra = geometry(case), case["extra"] or {}
    tokens, tp = case["kv_tokens"], given(case, "tp") or 1
    slots = extra.get("max_mamba_cache_size", -1) + 1
    page = given(case, "block_size") or 1
    expected: list[tuple[float, float]] = []  # bytes, printed GiB
    if "k_gb" in extra and tokens:
        heads = shape.get("kv_heads_per_rank") or max(1, shape["kv_heads"] // tp)
        layers = shape.get("full_layers") or shape["layers"]
        row = heads * shape["head_dim"] * 2
        expected += [(tokens * layers * row, extra["k_gb"]), (tokens * layers * row, extra["v_gb"])]
        if "draft_k_gb" in extra:
            expected += [(tokens * row, extra["draft_k_gb"]), (tokens * row, extra["draft_v_gb"])]
    if "kv_gb" in extra and tokens and "bytes_latent" in shape:
        row = shape["bytes_latent"] * shape["layers"]
        with_indexer = row + shape["bytes_indexer"] * shape["layers"]
        whole = extra.get("true_kv_gb")
        if whole:
            expected += [((tokens + page) * row, extra["kv_gb"]), (tokens * with_indexer, whole)]
        else:
            expected.append((tokens * with_indexer, extra["kv_gb"]))
    elif "kv_gb" in extra and tokens and "kv_lora_rank" in shape:
        row = (shape["kv_lora_rank"] + shape["rope_dim"]) * 2 * shape["mla_layers"]
        expected.append((tokens * row, extra["kv_gb"]))
    if "bytes_per_full_token" in extra and tokens:
        lowest, highest = (case["available_kv_gib"] + d for d in (-0.005, 0.005))
        pages = [int(g * GIB / extra["bytes_per_full_token"]) // page for g in (lowest, highest)]
        return bool(tokens % page == 0 and pages[0] <= tokens // page <= pages[1])
    if slots and ("gdn_v_heads" in shape or "mamba_heads" in shape):
        expected += list(_state_sizes(case, extra, slots))
    return all(_near(size / GIB, printed) for size, printed in expected) if expected else None


def _state_sizes(
    case: Mapping[str, Any], extra: Mapping[str, Any], slots: int
) -> Iterator[tuple[float, float]]:
    for dtype in ("bfloat16", "float32"):
        run = resolved(case, Reading(version="", kv_dtype="bfloat16", ssm_dtype=dtype))
        states = [layer.spec for layer in run.ranks[0].layers if layer.spec.is_state]
        conv, ssm = (
            sum(spec.page_arrays()[i].num_bytes(1) for spec in states) * slots for i in (0, 1)
        )
        if _near(ssm / GIB, extra["ssm_gb"]):
            yield ssm, extra["ssm_gb"]
            yield conv, extra["conv_gb"]
            return
    yield 0, extra["ssm_gb"]
