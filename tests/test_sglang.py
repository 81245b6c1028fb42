"""SGLang's plan against its own figures: shares by card, pools of the facts, lines of ten logs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from planned_engines import GIB, engine, full, latent, layers, planned, question, state, window

from kvpipe.engines import sglang_sizes as sizes
from kvpipe.engines.plan import plan_engine
from kvpipe.engines.planned import Card
from kvpipe.engines.sglang_fraction import static_fraction, step_sizes
from kvpipe.errors import DoesNotFit

LOGS = json.loads(
    gzip.decompress((Path(__file__).parent / "cases" / "engine_logs.json.gz").read_bytes())
)
BY_ID: dict[str, dict[str, Any]] = {case["id"]: case for case in LOGS}

# MiB of the card as nvidia-smi gives it -> share with K and V on 1 and 8 ranks, with latent rows.
SHARES = {
    15360: (0.735, 0.677, 0.657, 0.599),
    23034: (0.684, 0.635, 0.635, 0.586),
    24564: (0.704, 0.658, 0.657, 0.612),
    32607: (0.777, 0.742, 0.742, 0.708),
    46068: (0.843, 0.818, 0.818, 0.793),
    81920: (0.830, 0.813, 0.817, 0.800),
    81559: (0.830, 0.812, 0.816, 0.799),
    143771: (0.903, 0.893, 0.896, 0.886),
    183359: (0.854, 0.849, 0.849, 0.844),
}


@pytest.mark.parametrize("mib", SHARES)
def test_the_share_of_a_card_is_what_the_engines_own_code_gave(mib: int) -> None:
    found = tuple(
        static_fraction(step_sizes(mib, tp), mib, tp=tp, is_latent=is_latent)
        for is_latent in (False, True)
        for tp in (1, 8)
    )
    assert found == SHARES[mib]


def test_windows_and_full_layers_share_a_budget_by_the_ratio() -> None:
    made = planned("sglang", layers((12, full(8, 64)), (12, window(128, 8, 64))), 40 * GIB)
    assert {pool.name: pool.count for pool in made.pools} == {
        "tokens": 970_903,
        "window 128": 776_722,
    }


# --- logs ---
def log_plan(case: str, stored: Any, budget: float, **options: Any) -> Any:
    asked = question(stored, int(budget), ssm_dtype=options.pop("ssm", None))
    return plan_engine(engine("sglang", **options), asked)


def tokens_and_sizes(printed: str) -> tuple[int, list[float]]:
    """Of a line: the count, and every size in GB."""
    count = int(printed.partition("#tokens: ")[2].partition(",")[0])
    return count, [float(word.split("size: ")[1][:-2]) for word in printed.split(", ")[2:]]


# Log -> (layers, page): bytes a token and layer as the model's published shape gives them.
POOLS = {
    "L04": (layers((94, full(1, 128))), 1),
    "L38": (layers((61, latent(656)), (61, latent(132))), 64),
    "L39": (layers((61, latent(656))), 64),  # before its fix the line left the indexer out
    "X30": (layers((24, full(2, 64))), 1),
    "X33": (layers((7, latent(1152))), 1),
    "X34": (layers((12, full(1, 256))), 1),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_logs_bytes_become_its_tokens_and_its_line(name: str) -> None:
    """The budget of exactly its tokens: neither one token more nor another size is printed."""
    case, (stored, page) = BY_ID[name], POOLS[name]
    cell = sum(layer.spec.real_page_size_bytes for layer in stored)
    made = log_plan(name, stored, case["kv_tokens"] * cell + page * cell - 1, page_size=page)
    extra = case["extra"]
    kinds = ("kv_gb",) if "kv_gb" in extra else ("k_gb", "v_gb")
    line = next(line for line in made.printed if "KV Cache is allocated" in line)
    assert tokens_and_sizes(line) == (case["kv_tokens"], [extra[kind] for kind in kinds])
    assert made.printed[-1].startswith(f"max_total_num_tokens={case['kv_tokens']},")


def test_a_log_with_bytes_a_token_is_floored_to_its_pages() -> None:
    """L42 prints its budget to two decimals: the tokens it prints are among what these allow."""
    case = BY_ID["L42"]
    cell = case["extra"]["bytes_per_full_token"]
    low, high = ((case["available_kv_gib"] + off) * GIB for off in (-0.005, 0.005))
    possible = {sizes.full_tokens(int(budget), cell, 256) for budget in (low, high)}
    assert min(possible) <= case["kv_tokens"] <= max(possible)
    assert len(range(min(possible), max(possible) + 1, 256)) <= 3
    assert case["kv_tokens"] % 256 == 0


GDN = state((2 * 16 * 128 + 48 * 128, 3), (48, 128, 128), "bfloat16")
MAMBA2 = state((128 * 64 + 2 * 128, 3), (128, 64, 128))
STATES = {
    "X31": (layers((16, full(4, 256)), (48, GDN)), "bfloat16"),
    "X32": (layers((4, full(8, 128)), (36, MAMBA2)), "float32"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_logs_slots_become_the_sizes_of_its_states(name: str) -> None:
    case, (stored, ssm) = BY_ID[name], STATES[name]
    extra = case["extra"]
    slots = extra["max_mamba_cache_size"]
    made = log_plan(name, stored, 64 * GIB, max_mamba_cache_size=slots, ssm=ssm)
    line = made.printed[0]
    assert f"max_mamba_cache_size: {slots}," in line
    assert f"conv_state size: {extra['conv_gb']:.2f}GB" in line
    assert f"ssm_state size: {extra['ssm_gb']:.2f}GB" in line


def test_the_tokens_beside_a_logs_states_are_its_own() -> None:
    """X31: what is left beside 43 slots, at 16 attention layers a token, prints its K and V."""
    case, (stored, ssm) = BY_ID["X31"], STATES["X31"]
    charged = 44 * sum(layer.spec.real_page_size_bytes for layer in stored if layer.spec.is_state)
    cell = 16 * 2 * 4 * 256 * 2
    made = log_plan(
        "X31", stored, charged + case["kv_tokens"] * cell, max_mamba_cache_size=43, ssm=ssm
    )
    assert tokens_and_sizes(made.printed[1]) == (171_008, [5.22, 5.22])
    assert made.max_requests == 43 // 5


def test_weights_above_the_share_are_refused_and_a_share_that_would_do_is_proposed() -> None:
    """L61: 12.25 of 137.90 GiB are left, the engine asks for more than 0.9113."""
    case = BY_ID["L61"]
    weights = case["weights_gib"]
    before = weights + case["extra"]["avail_after_load_gb"]
    asked = question(
        layers((61, full(1, 128))),
        card=Card(name="h200", type="cuda", total_bytes=round(before * GIB)),
        weight_bytes=round(weights * GIB),
    )
    tried = engine("sglang", mem_fraction_static=0.88)
    with pytest.raises(DoesNotFit, match=r"-4\.30 GiB for its cache"):
        plan_engine(tried, asked)
    shares = [change["engine.mem_fraction_static"] for change in next(iter(tried.proposals(asked)))]
    assert shares == [0.89, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95]
    for share in shares:
        if share > 0.9113:
            assert plan_engine(engine("sglang", mem_fraction_static=share), asked).tokens
        else:
            with pytest.raises(DoesNotFit):
                plan_engine(engine("sglang", mem_fraction_static=share), asked)
