#!/usr/bin/env python
"""vLLM's own block manager and kvpipe's, call by call over the same random requests and a trace.

    python tools/live/block_race.py vllm-0.32.0 [--sequences 25] [--trace FILE.jsonl --requests 300]

Started again inside the engine's environment (tools/live/setup.py makes it). After each call are
compared: whether it was granted, how many tokens were hit, how many blocks are free. Prefixes are
cached in pools that never run dry; without caching the pool is tight and requests are preempted.
What differs and who is right: docs/blocks.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.managers import KINDS, Kind, Manager, kvpipes, vllms  # noqa: E402

MAX_LEN, CHUNK = 512, 64


@dataclass
class Count:
    """calls: compared; thriftier: of these, with more blocks free in ours. differences: what the
    call was, then ours and theirs."""

    sequences: int = 0
    calls: int = 0
    thriftier: int = 0
    preemptions: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass
class Race:
    """One sequence over both managers, until they part."""

    kind: Kind
    ours: Manager
    theirs: Manager
    draw: Random
    count: Count
    drafts: int = 0
    prompts: dict[str, list[int]] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)  # oldest first

    def compare(self, what: str, answers: tuple[object, object]) -> bool:
        self.count.calls += 1
        free = self.ours.num_free(), self.theirs.num_free()
        self.count.thriftier += free[0] > free[1]
        if answers[0] == answers[1] and free[0] >= free[1]:
            return True
        told = f"{what}: ours {answers[0]}, {free[0]} free; theirs {answers[1]}, {free[1]} free"
        self.count.differences.append(told)
        return False

    def run(self, num_calls: int, stems: Sequence[Sequence[int]]) -> None:
        for number in range(num_calls):
            for manager in (self.ours, self.theirs):
                manager.begin_step()
            if not self.step(number, stems):
                return

    def step(self, number: int, stems: Sequence[Sequence[int]]) -> bool:
        unfinished = [n for n, tokens in self.prompts.items() if self.stored[n] < len(tokens)]
        choice = self.draw.random()
        if len(self.stored) < 2 or (choice < 0.15 and len(self.stored) < 12):
            return self.admit(f"request {number}", stems)
        if unfinished and choice < 0.5:
            name = self.draw.choice(unfinished)
            asked, stored = self.draw.randint(1, CHUNK), self.stored[name]
            new = self.kind.chunk(stored, asked, len(self.prompts[name]))
            return self.grow(name, new, f"{name}: {new} tokens after {self.stored[name]}")
        decoding = [n for n in self.stored if n not in unfinished and self.stored[n] < MAX_LEN - 8]
        if decoding and choice < 0.95:
            return self.decode(self.draw.choice(decoding))
        name = self.draw.choice(list(self.stored))
        self.end(name)
        return self.compare(f"{name} ends", (True, True))

    def admit(self, name: str, stems: Sequence[Sequence[int]]) -> bool:
        stem = self.draw.choice(stems)[: self.draw.randint(1, 200)]
        tokens = [*stem, *[self.draw.randrange(3) for _ in range(self.draw.randint(1, 60))]]
        new = self.draw.randint(1, CHUNK)
        got = self.granted(name, lambda manager: manager.admit(name, tokens, new))
        if isinstance(got[0], tuple):
            self.prompts[name], self.stored[name] = tokens, sum(got[0])
        return self.compare(f"{name} of {len(tokens)} tokens", got)

    def grow(self, name: str, new: int, what: str) -> bool:
        got = self.granted(name, lambda manager: manager.prefill(name, new))
        if name in self.stored:
            self.stored[name] += new if got[0] else 0
        return self.compare(what, got)

    def decode(self, name: str) -> bool:
        token, drafts = self.draw.randrange(3), self.draw.randint(0, self.drafts)
        accepted = self.draw.randint(0, drafts)
        got = self.granted(name, lambda manager: manager.decode(name, token, drafts, accepted))
        if name in self.stored:
            self.stored[name] += 1 + accepted if got[0] else 0
        return self.compare(f"{name} decodes, {accepted} of {drafts} drafts stay", got)

    def granted(self, name: str, call: Callable[[Manager], object]) -> tuple[object, object]:
        """Both answers; on a shortage of both, the youngest is preempted, and both asked again.
        (What left a window is free earlier in theirs: counts are compared after a grant.)"""
        while True:
            got = call(self.ours), call(self.theirs)
            if got[0] or got[1] or not self.stored:
                return got
            youngest = next(reversed(self.stored))
            self.count.preemptions += 1
            self.end(youngest)
            if youngest == name:
                return True, True  # it is gone from both

    def end(self, name: str) -> None:
        for manager in (self.ours, self.theirs):
            manager.free(name)
        del self.prompts[name], self.stored[name]


def races(sequences: int, num_calls: int) -> Iterator[tuple[str, str, Count]]:
    """(kind, how, what was counted)."""
    stems = [[Random(seed).randrange(3) for _ in range(200)] for seed in range(3)]
    for kind, specs in KINDS.items():
        hows = (("caching", 4000, 0), ("tight, no caching", 60, 0), ("drafts", 4000, 3))
        for how, num_blocks, drafts in hows:
            if drafts and not specs.drafts:
                continue
            count = Count()
            for seed in range(sequences):
                made = [make(specs, num_blocks, how == "caching") for make in (kvpipes, vllms)]
                race = Race(specs, made[0], made[1], Random(seed), count, drafts)
                race.run(num_calls, stems)
                count.sequences += 1
            yield kind, how, count


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", help="an environment, or `here`")
    parser.add_argument("--sequences", type=int, default=25)
    parser.add_argument("--calls", type=int, default=300, help="of each sequence")
    parser.add_argument("--trace", help="a mooncake trace: the same scheduler over both")
    parser.add_argument("--requests", type=int, default=300)
    asked = parser.parse_args(argv)
    if asked.engine != "here":
        from tools.live.environments import run_again_in

        return run_again_in(asked.engine, __file__, argv[1:])
    if asked.trace:
        from tools.live.trace_race import print_race

        print_race(Path(asked.trace), asked.requests)
        return 0
    print("| cache | how | sequences | calls | preempted | ours freer | equal | first difference |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, how, count in races(asked.sequences, asked.calls):
        equal = count.sequences - len(count.differences)
        first = count.differences[0] if count.differences else ""
        cells = [kind, how, count.sequences, f"{count.calls:,}", count.preemptions]
        cells += [f"{count.thriftier:,}", equal, first]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
