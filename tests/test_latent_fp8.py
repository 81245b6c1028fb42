"""Latent rows of 8 bits: which releases have a kernel for them, and on which devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_arguments import STEP

from kvpipe.engines.arguments import refused_arguments
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import execute

HOPPER, ADA, AMPERE, BLACKWELL_AT_HOME = (9, 0), (8, 9), (8, 0), (12, 0)


@pytest.mark.parametrize(
    ("version", "capability", "is_refused"),
    [
        ("0.7.1", HOPPER, True),
        ("0.10.2", HOPPER, False),
        ("0.10.2", BLACKWELL_AT_HOME, True),
        ("0.17.0", HOPPER, False),
        ("0.17.0", BLACKWELL_AT_HOME, True),  # its Triton backend says so
        ("0.18.0", BLACKWELL_AT_HOME, False),
        ("0.33.0", ADA, False),
        ("0.33.0", AMPERE, True),
        ("0.33.0", None, False),
        ("", AMPERE, False),
    ],
)
@pytest.mark.parametrize("stored", ["fp8_e4m3", "bfloat16", ""])
def test_eight_bits_are_refused_where_no_kernel_reads_them(
    version: str, capability: tuple[int, int] | None, is_refused: bool, stored: str
) -> None:
    asked = replace(STEP, compute_capability=capability, latent_dtype=stored)
    keys = [problem.key for problem in refused_arguments(asked, version)]
    assert keys == ["cache.cache_dtype"] * (is_refused and stored.startswith("fp8"))


def test_blocks_of_one_token_are_planned_where_a_kernel_takes_a_slot_a_token() -> None:
    asked = ["model=llama", "device=h100_80gb", "backend=meta", "cache.block_size=1"]
    memory = ["cache.kv_cache_memory_bytes=4GiB", "scheduler.max_model_len=8192"]
    plan = execute(prepared_request([*asked, *memory, "layout=token_rows"]).prepared).plan
    assert plan.num_blocks == 4 * 2**30 // (32 * 2 * 8 * 128 * 2)
