"""attention=streaming from a word on the command line to bytes that are read back."""

from __future__ import annotations

import pytest
from block_models import config_of, full, streaming

import kvpipe
from kvpipe.blocks import BlockManager
from kvpipe.errors import ConfigError
from kvpipe.specs.base import RequestLimits

SMALL = ["attention=streaming", "model=tinyllama", "cache.kv_cache_memory_bytes=64MiB"]
SMALL += ["scheduler.max_model_len=2048", "scheduler.max_num_batched_tokens=256"]


def manager(num_blocks: int = 60) -> BlockManager:
    limits = RequestLimits(max_model_len=60, max_num_batched_tokens=12)
    specs = [streaming(4, 5, 6), full(4)]
    return BlockManager(config_of(specs, num_blocks), limits, prefix_caching=True)


def held(blocks: BlockManager, request: str) -> list[int]:
    row = blocks.block_table(0, [request])[0]
    return [i for i, block in enumerate(row) if block > 0]


def test_a_long_request_holds_its_sinks_and_its_window_and_nothing_between() -> None:
    blocks = manager()
    blocks.add_request("r", list(range(48)))
    for _ in range(4):
        blocks.allocate("r", 12)
    blocks.append(["r"], [1])
    assert held(blocks, "r") == [0, 1, 10, 11, 12]  # tokens 0..4, and 43..48
    free = blocks.pool.num_free
    for _ in range(7):
        blocks.append(["r"], [1])
    assert held(blocks, "r") == [0, 1, 12, 13] and blocks.pool.num_free == free  # full took one


def test_a_prefix_is_served_where_its_sinks_and_its_window_are_cached() -> None:
    blocks = manager()
    blocks.add_request("a", list(range(48)))
    for _ in range(4):
        blocks.allocate("a", 12)
    blocks.free("a")
    assert blocks.add_request("b", [*range(40), 99, 98]) == 40
    assert held(blocks, "b") == [0, 1, 8, 9]
    blocks.free("b")


def test_without_its_sinks_no_longer_prefix_is_served() -> None:
    spec = streaming(4, 5, 6)
    assert spec.hit_length([True] * 8) == 32
    assert spec.hit_length([True, True, *[False] * 4, True, True]) == 32  # a hole that nobody reads
    assert spec.hit_length([True, False, *[True] * 6]) == 4
    assert spec.hit_length([False, *[True] * 7]) == 0


def test_a_run_writes_through_the_hole_and_reads_back_what_it_wrote() -> None:
    result = kvpipe.run([*SMALL, "attention.options.sliding_window=60", "backend=torch"])
    (group,) = result.plan.groups
    assert group.spec.kind == "streaming"
    assert result.plan.capacity is not None
    assert result.plan.capacity.demands[0].steady_blocks == 5  # 1 of sinks, 60 tokens in 4
    verify = result.bound[0].verify
    assert verify is not None and verify.passed and verify.rows > 0


def test_engines_without_such_a_cache_refuse_it() -> None:
    with pytest.raises(ConfigError, match="expected an engine whose caches may have a hole"):
        kvpipe.run([*SMALL, "engine=vllm_0_33", "backend=meta"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("attention.options.num_sink_tokens=0", "num_sink_tokens must be a whole number of at le"),
        ("attention.options.sliding_window=null", "attention=streaming needs sliding_window"),
        ("cache.sliding_window=64", "expected null, since attention=streaming, got 64 tokens"),
    ],
)
def test_its_sizes_are_checked(wrong: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kvpipe.run([*SMALL, wrong, "backend=meta"])


def test_layers_with_windows_or_chunks_of_their_own_keep_them() -> None:
    result = kvpipe.run(
        [
            "attention=streaming",
            "model=gemma3_27b",
            "backend=meta",
            "device=h100_80gb",
            "parallel.tensor_parallel_size=2",
        ]
    )
    kinds = {group.spec.kind for group in result.plan.groups}
    assert kinds == {"sliding", "streaming"}
