"""A trace through one small scheduler over kvpipe's block manager and over vLLM's own."""

from __future__ import annotations

import gzip
import json
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.live.managers import KINDS, Manager, kvpipes, vllms

BATCH, BLOCK = 8192, 512  # tokens a step; tokens that one id of a trace's prefix stands for
POOLS = {"full": 60_000, "full, window of 40": 120_000}


@dataclass
class Served:
    """prompt, hit: tokens. seconds: of CPU, the scheduler's own included."""

    prompt: int = 0
    hit: int = 0
    preempted: int = 0
    steps: int = 0
    peak: int = 0
    seconds: float = 0.0


@dataclass
class Running:
    tokens: list[int]
    answer: int
    stored: int = 0
    again: bool = False  # after a preemption: what it hits are its own blocks, most likely


@dataclass
class Scheduler:
    """Decodes first, then prompts in order of arrival; the youngest is preempted."""

    manager: Manager
    waiting: deque[tuple[str, Running]]
    running: dict[str, Running] = field(default_factory=dict)
    served: Served = field(default_factory=Served)

    def run(self) -> Served:
        usable, start = self.manager.num_free(), time.process_time()
        while self.waiting or self.running:
            self.manager.begin_step()
            self.step()
            self.served.steps += 1
            self.served.peak = max(self.served.peak, usable - self.manager.num_free())
            for name in [n for n, r in self.running.items() if r.answer <= 0]:
                self.manager.free(name)
                del self.running[name]
        self.served.seconds = time.process_time() - start
        return self.served

    def step(self) -> None:
        budget = BATCH
        for name, request in list(self.running.items()):
            if name not in self.running:
                continue  # preempted by an older one
            new = min(budget, max(1, len(request.tokens) - request.stored))
            if new and self.grow(name, request, new):
                budget -= new
        while self.waiting and budget and len(self.running) < 256:
            name, request = self.waiting[0]
            got = self.manager.admit(name, request.tokens, budget)
            if got is None:
                return
            self.waiting.popleft()
            request.stored = sum(got)
            self.served.prompt += 0 if request.again else len(request.tokens)
            self.served.hit += 0 if request.again else got[0]
            self.running[name] = request
            budget -= got[1]

    def grow(self, name: str, request: Running, new: int) -> bool:
        while True:
            if request.stored < len(request.tokens):
                granted = self.manager.prefill(name, new)
            else:
                granted = self.manager.decode(name, 7, 0, 0)
                request.answer -= granted
                if granted:
                    request.tokens.append(7)
            if granted:
                request.stored += new
                return True
            youngest = next(reversed(self.running))
            again = self.running.pop(youngest)
            self.manager.free(youngest)
            self.waiting.appendleft((youngest, Running(again.tokens, again.answer, again=True)))
            self.served.preempted += 1
            if youngest == name:
                return False


def requests(path: Path, most: int) -> deque[tuple[str, Running]]:
    """Tokens that agree as far as the trace's prefix ids do."""
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    found: deque[tuple[str, Running]] = deque()
    for number, line in enumerate(text.splitlines()[:most]):
        row: Any = json.loads(line)
        tokens = [identity for identity in row["hash_ids"] for _ in range(BLOCK)]
        request = Running(tokens[: row["input_length"]], max(1, row["output_length"]))
        found.append((f"request {number}", request))
    return found


def print_race(path: Path, most: int) -> None:
    print(
        "| cache | blocks | who | prompt tokens | hit | peak blocks | preempted | steps | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for kind, num_blocks in POOLS.items():
        for who, make in (("kvpipe", kvpipes), ("vLLM", vllms)):
            served = Scheduler(make(KINDS[kind], num_blocks, True), requests(path, most)).run()
            cells = [kind, f"{num_blocks:,}", who, f"{served.prompt:,}"]
            cells += [f"{served.hit / served.prompt:.4f}", f"{served.peak:,}"]
            cells += [str(served.preempted), f"{served.steps:,}", f"{served.seconds:.1f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
