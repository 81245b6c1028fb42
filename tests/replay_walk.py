"""A server walked the slow and obvious way: each step looks at every request, one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvpipe.blocks import BlockManager, OutOfBlocks, PrefixChain
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


def walked_groups(manager: BlockManager, tokens: list[int], hit: int) -> list[tuple[int, int]]:
    """(alone, cut) of each group, token by token: from a prefix of so many tokens the next one
    reads positions, and each of them lies in a block that the group must have. hit: of all."""
    if not manager.prefix_caching:
        return []
    chain = PrefixChain(manager.granule)
    chain.extend(tokens)

    def lacking(g: int) -> list[int]:
        """[n + 1] how many of the first so many tokens lie in no block that the group has."""
        span, sums = manager.tables[g].span, [0]
        for position in range(len(tokens) // span * span):
            end = (position // span + 1) * span // manager.granule
            (key,) = chain.keys_at(range(end - 1, end), g)
            sums.append(sums[-1] + (key not in manager.pool.index))
        return sums

    groups = range(len(manager.tables))
    lacks = [lacking(g) for g in groups]

    def serves(g: int, length: int) -> bool:
        reads = manager.tables[g].spec.visible(length, manager.limits)
        return length % manager.tables[g].span == 0 and all(
            lacks[g][min(run.stop, length)] == lacks[g][min(run.start, length)] for run in reads
        )

    def best(g: int, length: int) -> int:
        return next(n for n in range(length, -1, -1) if not n or serves(g, n))

    alone = [best(g, len(tokens) - 1) for g in groups]
    cut, length = [0 for _ in groups], max(alone)
    while length > hit:
        poorest = min(groups, key=lambda g: (best(g, length), g))
        cut[poorest] += length - best(poorest, length)
        length = best(poorest, length)
    assert all(best(g, hit) == hit for g in groups)
    return list(zip(alone, cut, strict=True))


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
    by_group: list[list[int]] = field(default_factory=list)  # asked, hit, cut, requests cut
    waiting: list[One] = field(default_factory=list)
    running: list[One] = field(default_factory=list)
    stuck: bool = False

    def serve(self, requests: list[TraceRequest]) -> Walk:
        self.by_group = [[0] * 4 for _ in self.manager.tables if self.manager.prefix_caching]
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
        groups = [] if one.again else walked_groups(self.manager, one.tokens(), hit)
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
        for sums, (alone, cut) in zip(self.by_group, groups, strict=False):
            more = one.request.prompt_tokens, alone, cut, cut > 0
            sums[:] = [a + b for a, b in zip(sums, more, strict=True)]
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
            "by_group": self.by_group,
            "pool": self.manager.pool.stats(),
        }
