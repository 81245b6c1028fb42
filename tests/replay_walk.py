"""A server walked the slow and obvious way: each step looks at every request, one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.physics.bounds import StepBound
from kvpipe.physics.lengths import ListedLengths
from kvpipe.simulation.traces.base import TraceRequest


@dataclass(eq=False)
class One:
    name: int
    request: TraceRequest
    known: int  # tokens
    stored: int = 0
    again: bool = False
    begun: bool = False
    answered_s: float | None = None

    @property
    def whole(self) -> int:
        return self.request.prompt_tokens + self.request.output_tokens - 1

    def tokens(self) -> list[int]:
        """Ids of a trace's prefix blocks apart from those of the request's own."""
        request = self.request
        named = [
            2**20 + prefix for prefix in request.prefix_ids for _ in range(request.prefix_block)
        ][: request.prompt_tokens]
        return named + [self.name] * (self.known - len(named))


@dataclass
class Walk:
    """What it counts has the names that a replay's result has."""

    manager: BlockManager
    seconds: StepBound
    most: int
    now: float = 0.0
    steps: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    wait: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    finished: list[tuple[int, float]] = field(default_factory=list)
    waiting: list[One] = field(default_factory=list)
    running: list[One] = field(default_factory=list)
    stuck: bool = False

    def serve(self, requests: list[TraceRequest]) -> Walk:
        coming = [One(i, request, request.prompt_tokens) for i, request in enumerate(requests)]
        while coming or self.waiting or self.running:
            while coming and coming[0].request.arrival_s <= self.now:
                self.waiting.append(coming.pop(0))
            if self.waiting or self.running:
                self.step()
            else:
                self.now = coming[0].request.arrival_s
        return self

    def step(self) -> None:
        self.manager.begin_step()
        budget = self.manager.limits.max_num_batched_tokens
        decoded = self.decode(budget)
        tokens = len(decoded)
        for one in [one for one in self.running if one.stored < one.known]:
            tokens += self.chunk(one, budget - tokens)
        while self.waiting and tokens < budget and len(self.running) < self.most:
            if self.stuck or not (got := self.admit(budget - tokens)):
                break
            tokens += got
        if not tokens:
            assert len(self.running) > 1, "the pools of these tests hold any one request"
            self.preempt()
        lengths = [one.stored for one in decoded]
        self.now += self.seconds.seconds(ListedLengths(lengths), tokens)
        self.steps += 1
        self.end()

    def decode(self, budget: int) -> list[One]:
        while batch := [one for one in self.running if one.stored == one.known][:budget]:
            try:
                self.manager.append([one.name for one in batch], [one.name for one in batch])
            except OutOfBlocks:
                self.preempt()
                continue
            for one in batch:
                one.stored += 1
                one.known += 1
            return batch
        return []

    def chunk(self, one: One, budget: int) -> int:
        new = min(budget, one.known - one.stored)
        if new < 1:
            return 0
        try:
            self.manager.allocate(one.name, new)
        except OutOfBlocks:
            return 0
        one.stored += new
        return new

    def admit(self, budget: int) -> int:
        one = self.waiting[0]
        one.stored = hit = self.manager.add_request(one.name, one.tokens())
        got = self.chunk(one, budget)
        if not got:
            self.manager.free(one.name)
            one.stored, self.stuck = 0, True
            return 0
        self.running.append(self.waiting.pop(0))
        if not one.begun:
            one.begun = True
            self.wait.append(self.now - one.request.arrival_s)
        self.hit_tokens += 0 if one.again else hit
        return got

    def preempt(self) -> None:
        one = self.running.pop()
        self.manager.free(one.name)
        one.stored, one.again, self.stuck = 0, True, False
        self.preemptions += 1
        self.waiting.insert(0, one)

    def end(self) -> None:
        for one in sorted(self.running, key=lambda one: one.name):
            if one.answered_s is None and one.stored >= one.request.prompt_tokens:
                one.answered_s = self.now
                self.first_token.append(self.now - one.request.arrival_s)
        for one in [one for one in self.running if one.stored >= one.whole]:
            self.running.remove(one)
            self.manager.free(one.name)
            self.finished.append((one.name, self.now))
            self.stuck = False

    def told(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "steps": self.steps,
            "preemptions": self.preemptions,
            "hit_tokens": self.hit_tokens,
            "wait": sorted(self.wait),
            "first_token": sorted(self.first_token),
            "finished": self.finished,
            "pool": self.manager.pool.stats(),
        }
