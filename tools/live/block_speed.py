#!/usr/bin/env python
"""Speed of kvpipe's block pool, manager and planner beside vLLM's own, in one process.

    python tools/live/block_speed.py vllm-0.32.0 [--rounds 5]
    PATH_OF_A_PYTHON_WITH_VLLM tools/live/block_speed.py here

CPU time of this thread, in pieces of about a millisecond, in rounds that both take in turn: what
else the machine does slows both alike, and only the ratios are worth comparing, of the least piece
and of the median one. The table is benchmarks/BLOCKS.md's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kvpipe.blocks import BlockPool  # noqa: E402
from tools.live.managers import KINDS, Kind, Manager, kvpipes, vllm_pool, vllms  # noqa: E402

NUM_BLOCKS, PROMPT, PROMPTS = 60_001, 4096, 12
RACED = {"full": KINDS["full"], "full, window of 1,024": KINDS["full, window of 1,024"]}
Row = tuple[str, list[float]]  # what, seconds a block (decode: a request) of each piece


def pool_rows(allocate: Callable[[int], Any], free: Callable[[Any], Any]) -> Iterator[Row]:
    for batch, calls in ((1, 500), (16, 250), (256, 25)):
        num = min((NUM_BLOCKS - 1) // (batch * calls), 20)
        taken: list[list[Any]] = []
        took, gave = [], []
        for _ in range(num):
            start = time.thread_time()
            taken.append([allocate(batch) for _ in range(calls)])
            took.append((time.thread_time() - start) / (calls * batch))
        for piece in taken:
            start = time.thread_time()
            for blocks in piece:
                free(blocks)
            gave.append((time.thread_time() - start) / (calls * batch))
        yield f"pool: allocate {batch}", took
        yield f"pool: free {batch}", gave


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
        spent = []
        for i in range(PROMPTS):
            manager.begin_step()
            start = time.thread_time()
            step(i)
            spent.append((time.thread_time() - start) / 256)
        yield f"{name}: {what}, 256 blocks", spent


def decode_rows(name: str, kind: Kind, make: Callable[..., Manager]) -> Iterator[Row]:
    """Pieces of 16 steps: in each of them every request takes exactly one new block a group."""
    for batch, pieces in ((1, 20), (256, 2)):
        for caching in (False, True):
            manager = make(kind, NUM_BLOCKS, caching)
            names = [f"request {i}" for i in range(batch)]
            for i, request in enumerate(names):
                tokens = [i] * (600 + i % 16)
                hit, new = manager.admit(request, tokens, len(tokens)) or (0, 0)
                assert hit + new == len(tokens)
            manager.decode_batch(names, 7)
            spent = []
            for _ in range(pieces):
                start = time.thread_time()
                for _ in range(16):
                    manager.begin_step()
                    manager.decode_batch(names, 7)
                spent.append((time.thread_time() - start) / (16 * batch))
            yield f"{name}: decode {batch}{', caching' if caching else ''}", spent


def rows(make: Callable[..., Manager], pool: tuple[Any, Any]) -> Iterator[Row]:
    yield from pool_rows(*pool)
    for name, kind in RACED.items():
        yield from prompt_rows(name, kind, make)
        yield from decode_rows(name, kind, make)


def measure(rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """What -> seconds of every piece, ours and theirs; the two take turns."""
    pool = BlockPool(NUM_BLOCKS)
    pools = ((pool.allocate, pool.free), vllm_pool(NUM_BLOCKS))
    spent: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(rounds):
        for who, make in enumerate((kvpipes, vllms)):
            for what, pieces in rows(make, pools[who]):
                spent.setdefault(what, ([], []))[who].extend(pieces)
    return spent


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", help="an environment, or `here`")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(argv)
    if asked.engine != "here":
        from tools.live.environments import run_again_in

        return run_again_in(asked.engine, __file__, argv[1:])
    print("| what | ours, M/s | vLLM, M/s | ours / vLLM, least | median |\n|---|---|---|---|---|")
    for what, (ours, theirs) in measure(asked.rounds).items():
        best, rivals = min(ours), min(theirs)
        middle = median(theirs) / median(ours)
        figures = f"{1e-6 / best:.3f} | {1e-6 / rivals:.3f} | {rivals / best:.2f} | {middle:.2f}"
        print(f"| {what} | {figures} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
