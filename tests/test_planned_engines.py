"""llama.cpp, transformers and TensorRT-LLM against the figures of their rules; what all share."""

from __future__ import annotations

from typing import Any

import pytest
from planned_engines import GIB, MIB, NAMES, engine, full, layers, planned, question, state, window

from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec

GEMMA3 = layers((8, full(8, 256)), (40, window(1024, 8, 256)))
LLAMA3 = layers((32, full(8, 128)))


def counts(plan: EnginePlan) -> dict[str, int]:
    return {pool.name: pool.count for pool in plan.pools}


# --- llama.cpp: caches of one context of 131,072 cells -----------------------------------------
def llama_cpp(length: int, **options: Any) -> EnginePlan:
    asked = question(GEMMA3, 64 * GIB, length=length)
    return plan_engine(engine("llama_cpp", n_parallel=4, **options), asked)


@pytest.mark.parametrize(
    ("unified", "kind", "length", "cells", "windows", "mib"),
    [
        (True, "f16", 32768, 131072, 4608, 9632),
        (False, "f16", 32768, 131072, 1536 * 4, 10112),
        (True, "q8_0", 32768, 131072, 4608, 5117),
    ],
)
def test_the_cells_of_a_context_are_those_of_the_rules(
    unified: bool, kind: str, length: int, cells: int, windows: int, mib: int
) -> None:
    made = llama_cpp(length, kv_unified=unified, type_k=kind, type_v=kind)
    assert counts(made) == {"cells": cells, "window 1,024": windows}
    assert sum(pool.num_bytes for pool in made.pools) // MIB == mib
    assert f"--ctx-size {cells} --parallel 4" in made.start.command


def test_as_many_sequences_as_fit_and_not_one_more() -> None:
    made = planned("llama_cpp", LLAMA3, 62 * GIB)
    assert made.users.steady == 62
    asked = question(LLAMA3, 62 * GIB)
    with pytest.raises(DoesNotFit, match="63 sequences"):
        plan_engine(engine("llama_cpp", n_parallel=63), asked)


def test_a_quantised_cache_needs_widths_of_whole_blocks_and_flash_attention() -> None:
    narrow = layers((2, full(2, 80)))
    with pytest.raises(ConfigError, match="heads of 80 numbers"):
        planned("llama_cpp", narrow, GIB, type_k="q8_0")
    with pytest.raises(ConfigError, match=r"engine\.flash_attn: expected true"):
        planned("llama_cpp", LLAMA3, GIB, type_v="q8_0", flash_attn=False)


# --- transformers: sectors in 60 GiB, of which nine tenths may be taken ------------------------
@pytest.mark.parametrize(
    ("stored", "model", "sectors", "sector_mib"),
    [
        (LLAMA3, {"hidden_size": 4096, "vocab_size": 128256, "num_attention_heads": 32}, 1652, 32),
        (GEMMA3, {"hidden_size": 3840, "vocab_size": 262208, "num_attention_heads": 16}, 598, 80),
        (
            layers((12, full(8, 64)), (12, window(128, 8, 64))),
            {"hidden_size": 2880, "vocab_size": 201088, "num_attention_heads": 64},
            8351,
            6,
        ),
    ],
    ids=["llama3-8b", "gemma3-12b", "gpt-oss-20b"],
)
def test_sectors_are_those_that_the_wheels_own_solver_gave(
    stored: Any, model: dict[str, int], sectors: int, sector_mib: int
) -> None:
    asked = question(stored, int(60 * GIB * 0.9), model=model)
    (pool,) = plan_engine(engine("transformers", decode_blocks=0), asked).pools
    assert (pool.count, pool.unit_bytes) == (sectors, sector_mib * MIB)


def test_transformers_refuses_states_and_latent_rows() -> None:
    with pytest.raises(ConfigError, match="a state in"):
        planned("transformers", layers((1, full(2, 64)), (1, state((4, 3), (4, 8, 8)))), GIB)


# --- TensorRT-LLM ------------------------------------------------------------------------------
def test_windows_get_as_many_bytes_as_full_layers() -> None:
    stored = layers((40, window(1024, 8, 256)), (8, full(8, 256)))
    made = planned("tensorrt_llm", stored, 40 * GIB)
    assert counts(made) == {"window 1,024": 2048, "tokens": 10240}


def test_shares_that_are_set_must_add_up() -> None:
    stored = layers((40, window(1024, 8, 256)), (8, full(8, 256)))
    made = planned("tensorrt_llm", stored, 40 * GIB, window_shares=[0.25, 0.75])
    assert counts(made) == {"window 1,024": 1024, "tokens": 15360}
    with pytest.raises(ConfigError, match=r"engine\.window_shares: expected 2 shares"):
        planned("tensorrt_llm", stored, 40 * GIB, window_shares=[0.5, 0.6])


# --- all of them -------------------------------------------------------------------------------
MODELS = {
    "full": LLAMA3,
    "windows": GEMMA3,
    "states": layers((4, full(8, 128)), (12, state((8192, 3), (64, 64, 128)))),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_users_fill_the_pools_and_one_more_does_not_fit(name: str, model: str) -> None:
    """Counted anew, request by request, from the pools alone."""
    asked = question(
        MODELS[model],
        24 * GIB,
        length=4096,
        model={"hidden_size": 4096, "vocab_size": 32000, "num_attention_heads": 32},
    )
    try:
        made = plan_engine(engine(name), asked)
    except ConfigError as error:
        assert model == "states" and "engine.name: expected" in str(error)
        return
    assert sum(pool.num_bytes for pool in made.pools) <= made.budget.num_bytes

    def fits(requests: int, prefilling: bool) -> bool:
        in_pools = all(
            pool.demand.units(requests, 4096, prefilling) <= pool.count for pool in made.pools
        )
        return in_pools and (made.max_requests is None or requests <= made.max_requests)

    for users, prefilling in ((made.users.steady, False), (made.users.peak, True)):
        assert users > 0
        assert fits(users, prefilling) and not fits(users + 1, prefilling)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_lost_and_what_is_read_are_the_budget(name: str) -> None:
    made = plan_engine(
        engine(name),
        question(
            GEMMA3,
            40 * GIB,
            model={"hidden_size": 3840, "vocab_size": 262208, "num_attention_heads": 16},
        ),
    )
    told = sum(loss.num_bytes for loss in made.lost) + made.users.steady * made.needed_bytes
    assert abs(told - made.budget.num_bytes) < MIB


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_that_nobody_has_read_is_refused(name: str) -> None:
    chunked = ChunkedLocalAttentionSpec.examples()[0]
    with pytest.raises(ConfigError, match="whose rules for them are not known here"):
        planned(name, layers((1, full(2, 64)), (1, chunked)), GIB)


def test_every_figure_of_a_plan_has_a_mark() -> None:
    for name in NAMES:
        plugin = engine(name)
        made = plan_engine(
            plugin,
            question(
                LLAMA3,
                weight_bytes=15 * GIB,
                model={"hidden_size": 4096, "vocab_size": 32000, "num_attention_heads": 32},
            ),
        )
        assert {step.mark for step in made.budget.steps} <= {"checked", "read", "inferred"}
        assert sum(step.num_bytes for step in made.budget.steps) == made.budget.num_bytes
        assert made.mark == ("read" if name == "tensorrt_llm" else "checked")
