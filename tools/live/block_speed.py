#!/usr/bin/env python
"""Speed of kvpipe's block pool, manager and planner beside vLLM's own, in one process.

    python tools/live/block_speed.py vllm-0.32.0 [--rounds 5]
    PATH_OF_A_PYTHON_WITH_VLLM tools/live/block_speed.py here

CPU time of this thread, the least of several rounds that are run in turn: what else the machine
does slows both alike, and only the ratio is worth comparing. The table is benchmarks/BLOCKS.md's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kvpipe.blocks import BlockPool  # noqa: E402
from tools.live.managers import KINDS, Kind, Manager, kvpipes, vllm_pool, vllms  # noqa: E402

NUM_BLOCKS, PROMPT, PROMPTS = 60_001, 4096, 12
RACED = {"full": KINDS["full"], "full, window of 1,024": KINDS["full, window of 1,024"]}
Row = tuple[str, float]  # what, seconds a block (decode: a request)


def pool_rows(allocate: Callable[[int], Any], free: Callable[[Any], Any]) -> Iterator[Row]:
    for batch in (1, 16, 256):
        num = (NUM_BLOCKS - 1) // batch if batch > 1 else 10_000
        start = time.thread_time()
        taken = [allocate(batch) for _ in range(num)]
        middle = time.thread_time()
        for blocks in taken:
            free(blocks)
        end = time.thread_time()
        yield f"pool: allocate {batch}", (middle - start) / (num * batch)
        yield f"pool: free {batch}", (end - middle) / (num * batch)


def prompt_rows(name: str, kind: Kind, make: Callable[..., Manager]) -> Iterator[Row]:
    """Prompts of 4,096 tokens: new, ended with their blocks cached, and hit by the same again."""
    manager, draw = make(kind, NUM_BLOCKS, True), Random(0)
    prompts = [[draw.randrange(50_000) for _ in range(PROMPT)] for _ in range(PROMPTS)]
    steps: dict[str, Callable[[int], Any]] = {
        "new prompt": lambda i: manager.admit(f"new {i}", prompts[i], PROMPT),
        "free": lambda i: manager.free(f"new {i}"),
        "hit": lambda i: manager.admit(f"hit {i}", prompts[i], 1),
    }
    for what, step in steps.items():
        least = 1.0
        for i in range(PROMPTS):
            manager.begin_step()
            start = time.thread_time()
            step(i)
            least = min(least, time.thread_time() - start)
        yield f"{name}: {what}, 256 blocks", least / 256


def decode_rows(name: str, kind: Kind, make: Callable[..., Manager]) -> Iterator[Row]:
    for batch, steps in ((1, 320), (256, 32)):
        for caching in (False, True):
            manager = make(kind, NUM_BLOCKS, caching)
            names = [f"request {i}" for i in range(batch)]
            for i, request in enumerate(names):
                tokens = [i] * (600 + i % 16)
                hit, new = manager.admit(request, tokens, len(tokens)) or (0, 0)
                assert hit + new == len(tokens)
            manager.decode_batch(names, 7)
            start = time.thread_time()
            for _ in range(steps):
                manager.begin_step()
                manager.decode_batch(names, 7)
            seconds = (time.thread_time() - start) / (steps * batch)
            yield f"{name}: decode {batch}{', caching' if caching else ''}", seconds


def rows(make: Callable[..., Manager], pool: tuple[Any, Any]) -> Iterator[Row]:
    yield from pool_rows(*pool)
    for name, kind in RACED.items():
        yield from prompt_rows(name, kind, make)
        yield from decode_rows(name, kind, make)


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """What -> millions a second of ours and of theirs, at the best."""
    pool = BlockPool(NUM_BLOCKS)
    pools = ((pool.allocate, pool.free), vllm_pool(NUM_BLOCKS))
    least: dict[str, list[float]] = {}
    for _ in range(rounds):
        for who, make in enumerate((kvpipes, vllms)):
            for what, seconds in rows(make, pools[who]):
                best = least.setdefault(what, [1.0, 1.0])
                best[who] = min(best[who], seconds)
    return {what: (1e-6 / ours, 1e-6 / theirs) for what, (ours, theirs) in least.items()}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", help="an environment, or `here`")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(argv)
    if asked.engine != "here":
        from tools.live.environments import run_again_in

        return run_again_in(asked.engine, __file__, argv[1:])
    print("| what | ours, M/s | vLLM, M/s | ours / vLLM |\n|---|---|---|---|")
    for what, (ours, theirs) in measure(asked.rounds).items():
        print(f"| {what} | {ours:.3f} | {theirs:.3f} | {ours / theirs:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
