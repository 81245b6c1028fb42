"""What vLLM sets when the user does not, by release and device: batch budget, sequences, share.

The same table form as `_versions`. `defaults_of` answers for one device; usage: "server" (`vllm
serve`) or "llm" (the Python class), which get different batch budgets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from kvpipe.engines.cpu_defaults import CPU_ROWS
from kvpipe.engines.versions import NEWEST, Row, Version, parse_version
from kvpipe.text.figures import GIB

Usage = Literal["server", "llm"]
_SECTION = "engine configuration of 0.12.0, 0.17.0, 0.20.0, 0.26.0 and 0.33.0"

DEFAULTS: tuple[Row, ...] = (
    Row(
        rule="gpu_memory_utilization",
        value=0.90,
        until=(0, 20, 0),
        source=f"{_SECTION}; 0.90 in 0.17.0 and 0.92 in 0.20.0",
        certain=False,
    ),
    Row(
        rule="gpu_memory_utilization", value=0.92, since=(0, 20, 0), source=_SECTION, certain=False
    ),
    Row(
        rule="graphs_reserved",
        value=False,
        until=(0, 19, 0),
        source="pull request 30515: a log of March 2026 announces the reservation for 0.19",
        certain=False,
    ),
    Row(
        rule="graphs_reserved",
        value=True,
        since=(0, 19, 0),
        source=f"{_SECTION}; pull request 30515. With model runner V2 the estimate was 0 from "
        "0.25.1 (issue 49224) until a release between 0.27.1 and 0.33.0",
        certain=False,
    ),
    Row(rule="hybrid_prefix_caching", value=False, until=(0, 26, 0), source=_SECTION),
    Row(rule="hybrid_prefix_caching", value=True, since=(0, 26, 0), source=_SECTION),
    Row(rule="async_scheduling", value=False, until=(0, 13, 0), source=_SECTION, certain=False),
    Row(rule="async_scheduling", value=True, since=(0, 13, 0), source=_SECTION, certain=False),
    Row(
        rule="server_tokens_on_160_gib",
        value=8192,
        until=(0, 28, 0),
        source="8192 in 0.26.0, 16384 in 0.33.0; issue 53961 reports the change",
        certain=False,
    ),
    Row(
        rule="server_tokens_on_160_gib",
        value=16384,
        since=(0, 28, 0),
        source="8192 in 0.26.0, 16384 in 0.33.0; issue 53961 reports the change",
        certain=False,
    ),
    *(
        Row(
            rule="others_charged",
            value=charged,
            since=since,
            until=until,
            source=source,
            certain=False,
        )
        for charged, since, until, source in (
            (False, None, (0, 6, 4), "pull request 2863: what is held at the start is left out"),
            (True, (0, 6, 4), (0, 6, 5), "pull request 9352, reported as issue 10643"),
            (False, (0, 6, 5), (0, 8, 0), "pull request 10511: each instance counts its own"),
            (True, (0, 8, 0), (0, 9, 2), "the V1 engine, the default from 0.8.0 (issue 14376)"),
            (False, (0, 9, 2), None, "pull requests 18974 and 19312: what grows after the start"),
        )
    ),
    Row(
        rule="batch_of_short_requests",
        value="as_default",
        until=(0, 17, 0),
        source="what all requests together hold bounds the default batch in 0.17.0, 0.28.0, 0.32.0 "
        "and 0.33.0; older releases were not looked at",
        certain=False,
    ),
    Row(
        rule="batch_of_short_requests",
        value="what_they_hold",
        since=(0, 17, 0),
        source="read in 0.17.0, 0.28.0, 0.32.0 and 0.33.0",
    ),
    Row(
        rule="declared_cache_wins",
        value=True,
        until=(0, 18, 0),
        source="model_executor/layers/attention/attention.py, 0.17.0: a kv_cache_scheme replaces "
        "whatever was set; in 0.28.0 only auto",
        certain=False,
    ),
    Row(
        rule="declared_cache_wins",
        value=False,
        since=(0, 18, 0),
        source="model_executor/layers/attention/attention.py, 0.28.0 to 0.33.0",
        certain=False,
    ),
    *CPU_ROWS,
    Row(
        rule="chunked_prefill_beyond",
        value=32768,
        until=(0, 8, 0),
        source="issue 10517: chunked prefill turns on above 32,768 tokens; a whole prompt is one "
        "batch below",
    ),
    Row(rule="chunked_prefill_beyond", value=0, since=(0, 8, 0), source=_SECTION),
)


@dataclass(frozen=True, kw_only=True)
class EngineDefaults:
    """Tokens and requests a step, share of the device; how many steps are in flight."""

    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    max_concurrent_batches: int
    hybrid_prefix_caching: bool
    graphs_reserved: bool


# Of kvpipe's own rules, on every device: a batch budget that leaves the cache most of the memory.
OWN = EngineDefaults(
    max_num_batched_tokens=2048,
    max_num_seqs=256,
    gpu_memory_utilization=0.90,
    max_concurrent_batches=1,
    hybrid_prefix_caching=True,
    graphs_reserved=True,
)


def defaults_of(
    version: str,
    *,
    device_bytes: int,
    device_name: str = "",
    device_type: str = "cuda",
    usage: Usage = "server",
    world_size: int = 1,
    pp: int = 1,
    max_model_len: int | None = None,
    asked_tokens: int | None = None,
    asked_seqs: int | None = None,
) -> EngineDefaults:
    """What `version` would choose on that device. device_name: A100 and GB10 are exceptions.

    max_model_len: needed before 0.8, where a batch holds a whole prompt unless chunking is on.
    asked_tokens, asked_seqs: what the user set of a step (None: nothing), by which the default of
    the other is bounded.
    """
    parsed = min(parse_version(version), (*NEWEST[:2], 10**6))
    chosen: dict[str, Any] = {row.rule: row.value for row in DEFAULTS if row.holds(parsed)}
    tokens, seqs = _batch(parsed, chosen, device_bytes, device_name, device_type, usage, world_size)
    if chosen["chunked_prefill_beyond"]:
        seqs = 256
        chunked = (max_model_len or 0) > chosen["chunked_prefill_beyond"]
        tokens = 2048 if chunked else max(2048, max_model_len or 0)
    if chosen["batch_of_short_requests"] == "what_they_hold" and max_model_len:
        tokens = min(tokens, (asked_seqs or seqs) * max_model_len)
    return EngineDefaults(
        max_num_batched_tokens=tokens,
        max_num_seqs=min(seqs, asked_tokens or tokens),
        gpu_memory_utilization=chosen["gpu_memory_utilization"],
        max_concurrent_batches=_batches(parsed, device_type, chosen["async_scheduling"], pp),
        hybrid_prefix_caching=chosen["hybrid_prefix_caching"],
        graphs_reserved=chosen["graphs_reserved"],
    )


def _batch(
    version: Version,
    chosen: dict[str, Any],
    device_bytes: int,
    name: str,
    device_type: str,
    usage: Usage,
    world_size: int,
) -> tuple[int, int]:
    """(tokens, requests) of one step."""
    server = usage == "server"
    if device_type == "cpu":
        return (2048 if server else 4096) * world_size, (128 if server else 256) * world_size
    lowered = name.lower()
    small = "a100" in lowered or (version >= (0, 33, 0) and "gb10" in lowered)
    if device_bytes >= 160 * GIB:
        return (chosen["server_tokens_on_160_gib"] if server else 16384), 1024
    if device_bytes >= 70 * GIB and not small:
        return (8192 if server else 16384), 1024
    return (2048 if server else 8192), 256


def _batches(version: Version, device_type: str, is_async: bool, pp: int) -> int:
    """Steps in flight: pipeline stages, or two under asynchronous scheduling; one more for the
    pipeline from 0.26 on (model runner V2). On a CPU scheduling is never asynchronous
    (platforms/cpu.py, 0.28.0 to 0.32.0)."""
    if device_type == "cpu":
        return pp
    if version >= (0, 26, 0):
        return pp + 1
    return 2 if is_async and pp == 1 else pp


def block_size_on_a_cpu(version: str, kinds: Collection[str]) -> int:
    """Tokens a block has there if nobody sets it; kinds: of the model's caches."""
    return int(_value("cpu_latent_block_size" if "mla" in kinds else "cpu_block_size", version))


def kernel_block_on_a_cpu(version: str) -> int:
    """Tokens that a block of attention is a multiple of there."""
    return int(_value("cpu_kernel_block", version))


def window_takes_kernel_block(version: str) -> bool:
    """Whether a window's block is the smallest that the kernel runs, not the largest that the block
    of other layers holds."""
    return bool(_value("window_takes_kernel_block", version))


def state_block_takes_kernel_block(version: str) -> bool:
    """Whether a block that attention shares with states is made a multiple of the kernel's; where
    not, one that is none is refused."""
    return bool(_value("state_block_takes_kernel_block", version))


def declared_cache_wins(version: str) -> bool:
    """Whether the dtype that a compressed-tensors checkpoint declares for its cache replaces one
    that the user set; "": kvpipe's own rules, which store what was set."""
    return bool(version) and bool(_value("declared_cache_wins", version))


def graphs_reserved(version: str) -> bool:
    """Whether CUDA graphs are taken off the cache's memory; "": kvpipe's own rules, which do."""
    if not version:
        return True
    return bool(_value("graphs_reserved", version))


def others_charged(version: str) -> bool:
    """Whether memory that other processes hold counts against this instance's share; "": kvpipe's
    own rules, which take it off to be safe."""
    if not version:
        return True
    return bool(_value("others_charged", version))


def all_ranks_sample(version: str) -> bool:
    """The V0 engine sampled on the first rank alone."""
    return not version or parse_version(version) >= (0, 8, 0)


def chunked_beyond(version: str) -> int:
    """Before 0.8, the length above which prompts are cut into chunks; 0: they always are."""
    return int(_value("chunked_prefill_beyond", version))


def _value(rule: str, version: str) -> Any:
    parsed = min(parse_version(version), (*NEWEST[:2], 10**6))
    return next(row.value for row in DEFAULTS if row.rule == rule and row.holds(parsed))
