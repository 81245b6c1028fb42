"""Speed of the block pool and manager, raced in the same run with a linked list of block objects.

    pytest benchmarks/test_blocks.py -s --benchmark-enable     one JSON of pytest-benchmark, and
    python benchmarks/test_blocks.py                           the table of benchmarks/BLOCKS.md

Figures are millions a second of this thread's CPU time, the best of several rounds of each, taken
in turn: a busy machine slows both alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rivals.linked_list_pool import LinkedListPool, LinkedListRequests  # noqa: E402

from kvpipe.blocks import BlockManager, BlockPool  # noqa: E402
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from kvpipe.specs.base import RequestLimits  # noqa: E402
from kvpipe.specs.full import FullAttentionSpec  # noqa: E402

NUM_BLOCKS = 200_001
BATCHES = (1, 16, 256)
# Million blocks (calls, for decode) a second that vLLM 0.17 once took, on another machine.
REFERENCE = {
    ("allocate", 1): 0.68,
    ("allocate", 16): 4.4,
    ("allocate", 256): 5.5,
    ("free", 1): 2.1,
    ("free", 16): 10.0,
    ("free", 256): 12.0,
    ("lookup", 256): 1.2,
    ("decode", 256): 0.27,
}
# How many times the reference, and how many times the rival of the same run, we aim at.
AIM = {
    ("allocate", 1): 1,
    ("allocate", 16): 2,
    ("allocate", 256): 4,
    ("free", 16): 1,
    ("free", 256): 2,
    ("decode", 256): 2,
}


def pool_round(pool: Any, batch: int) -> tuple[float, float]:
    """Seconds to allocate, and to free, every block of a pool in batches."""
    num = (NUM_BLOCKS - 1) // batch if batch > 1 else 10_000
    allocate, free = pool.allocate, pool.free
    start = time.thread_time()
    taken = [allocate(batch) for _ in range(num)]
    middle = time.thread_time()
    for blocks in taken:
        free(blocks)
    return (middle - start) / (num * batch), (time.thread_time() - middle) / (num * batch)


def lookup_round(lookup: Callable[[list[bytes]], object], keys: list[bytes]) -> float:
    """Seconds a block to look up prompts of 256 blocks, all cached."""
    prompts = [keys[i : i + 256] for i in range(0, len(keys), 256)]
    start = time.thread_time()
    for prompt in prompts:
        lookup(prompt)
    return (time.thread_time() - start) / len(keys)


def decode_round(step: Callable[[], object], steps: int, batch: int) -> float:
    """Seconds a request and step."""
    start = time.thread_time()
    for _ in range(steps):
        step()
    return (time.thread_time() - start) / (steps * batch)


def manager_of(batch: int) -> tuple[BlockManager, list[str]]:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    group = KVCacheGroupSpec(layer_names=("layers.0",), spec=spec)
    config = KVCacheConfig(num_blocks=NUM_BLOCKS, tensors=(), groups=(group,), bytes_per_block=1)
    limits = RequestLimits(max_model_len=8192, max_num_batched_tokens=2048)
    manager = BlockManager(config, limits, max_num_requests=batch)
    names = [f"request {i}" for i in range(batch)]
    for i, name in enumerate(names):
        manager.add_request(name)
        manager.allocate(name, 600 + i % 16)
    return manager, names


def rival_of(batch: int) -> tuple[LinkedListRequests, list[str]]:
    requests = LinkedListRequests(LinkedListPool(NUM_BLOCKS), 16)
    names = [f"request {i}" for i in range(batch)]
    for i, name in enumerate(names):
        requests.allocate(name, 600 + i % 16)
    return requests, names


def measure(rounds: int = 15) -> dict[tuple[str, int], tuple[float, float]]:
    """(what, batch) -> (ours, the rival's), in millions a second."""
    seconds: dict[tuple[str, int], tuple[list[float], list[float]]] = {}

    def note(what: str, batch: int, who: int, value: float) -> None:
        seconds.setdefault((what, batch), ([], []))[who].append(value)

    pools = (BlockPool(NUM_BLOCKS), LinkedListPool(NUM_BLOCKS))
    keys = [i.to_bytes(32, "little") for i in range(51_200)]
    finders = cached_pools(keys)
    manager, names = manager_of(256)
    rival, rivals = rival_of(256)

    def ours() -> None:
        manager.begin_step()
        manager.append(names)

    def theirs() -> None:
        np.array(rival.decode(rivals), np.int64)  # a kernel reads an array

    for _ in range(rounds):
        for who, pool in enumerate(pools):
            for batch in BATCHES:
                allocated, freed = pool_round(pool, batch)
                note("allocate", batch, who, allocated)
                note("free", batch, who, freed)
        for who, find in enumerate(finders):
            note("lookup", 256, who, lookup_round(find, keys))
        for who, step in enumerate((ours, theirs)):
            note("decode", 256, who, decode_round(step, 64, 256))
    return {key: (1e-6 / min(a), 1e-6 / min(b)) for key, (a, b) in seconds.items()}


def cached_pools(keys: list[bytes]) -> tuple[Callable[..., object], Callable[..., object]]:
    pool, rival = BlockPool(NUM_BLOCKS), LinkedListPool(NUM_BLOCKS)
    pool.register(pool.allocate(len(keys)), keys)
    rival.register(rival.allocate(len(keys)), keys)
    return pool.lookup, rival.longest_hit


def table(figures: dict[tuple[str, int], tuple[float, float]]) -> str:
    lines = [
        "| what | batch | ours, M/s | linked list, M/s | ours / list | vLLM 0.17 once, M/s "
        "| ours / vLLM | aim |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (what, batch), (ours, theirs) in figures.items():
        reference, aim = REFERENCE[what, batch], AIM.get((what, batch))
        lines.append(
            f"| {what} | {batch} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.1f} | {reference} "
            f"| {ours / reference:.1f} | {f'{aim}x' if aim else ''} |"
        )
    return "\n".join(lines)


def memory_per_block(num_blocks: int = 10_000_000) -> tuple[float, float]:
    """Bytes a block of a pool: resident after every block was used, and the arrays as declared."""
    before = _resident()
    pool = BlockPool(num_blocks)
    pool.free(pool.allocate(num_blocks - 1))
    return (_resident() - before) / num_blocks, pool.nbytes / num_blocks


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("batch", BATCHES)
def test_allocate_and_free(benchmark: Any, batch: int) -> None:
    benchmark.pedantic(pool_round, (BlockPool(NUM_BLOCKS), batch), rounds=3)


def test_decode_step_of_256_requests(benchmark: Any) -> None:
    manager, names = manager_of(256)

    def step() -> None:
        manager.begin_step()
        manager.append(names)

    benchmark.pedantic(step, rounds=200)


if __name__ == "__main__":
    print(table(measure()))
    resident, declared = memory_per_block()
    print(f"\n10,000,000 blocks: {resident:.1f} bytes a block resident, {declared:.1f} in arrays")
