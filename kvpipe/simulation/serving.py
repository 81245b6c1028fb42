"""A simulated engine: continuous batching over the block manager, one step at a time.

A step gives every decoding request a token (and those that are drafted after it), then the rest of
max_num_batched_tokens to prompts, oldest first. When the pool runs dry the youngest request is
preempted: its blocks are freed and it waits again, at the front, to be computed anew. Time is
counted, not measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.physics.lengths import Lengths, ListedLengths
from kvpipe.simulation.counts import Counts, RanDry
from kvpipe.simulation.hits import Hits
from kvpipe.simulation.latencies import Latencies
from kvpipe.simulation.ledger import Ledger
from kvpipe.simulation.named_chain import PrefixNames
from kvpipe.simulation.standing import Standing, by_serial
from kvpipe.simulation.step_time import NominalStep, StepTime
from kvpipe.simulation.traces.base import TraceOptions
from kvpipe.simulation.traffic import Traffic


@dataclass
class Serving:
    manager: BlockManager
    options: TraceOptions
    max_num_seqs: int
    ledger: Ledger
    waiting: deque[Traffic] = field(default_factory=deque)
    running: list[Traffic] = field(default_factory=list)  # oldest first
    counts: Counts = field(default_factory=Counts)
    step_time: StepTime = field(default_factory=NominalStep)
    latencies: Latencies = field(default_factory=Latencies)
    preempted_s: list[float] = field(default_factory=list)
    on_finish: Callable[[int], None] = lambda _: None  # is told how many there are by now
    ran_dry: RanDry | None = None
    now: float = 0.0
    _admission_blocked: bool = False
    _unanswered: list[Traffic] = field(default_factory=list)  # admitted, no token yet
    _reading: list[Traffic] = field(default_factory=list)  # a prompt partly stored, oldest first
    _loose: list[Traffic] = field(default_factory=list)  # decode, but not in the standing batch
    _lengths: Lengths = field(default_factory=ListedLengths)  # of those that decode in this step
    _admitted: int = 0
    _random: Random = field(default_factory=lambda: Random(0))  # a replay repeats itself

    def __post_init__(self) -> None:
        self.hits = Hits(self.manager, self.counts)
        self._standing = Standing(self.manager.standing_batch())
        self._names = PrefixNames(self.manager.granule, len(self.manager.tables))

    def serve(self, arrivals: Iterable[Traffic]) -> None:
        """Until every request is finished or turned away. arrivals: in order of arrival."""
        rest = iter(arrivals)
        coming = next(rest, None)
        while coming or self.is_busy:
            while coming and self.arrival(coming) <= self.now:
                self.waiting.append(coming)
                coming = next(rest, None)
            if coming and not self.is_busy:
                self.now = self.arrival(coming)
                continue
            self.end_step(self.begin_step())

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)

    def arrival(self, item: Traffic) -> float:
        if self.options.arrivals == "at_once":
            return 0.0
        return item.request.arrival_s / self.options.arrival_rate_scale

    def begin_step(self) -> float:
        """The step's work; how many seconds it takes."""
        self.manager.begin_step()
        budget = self.manager.limits.max_num_batched_tokens
        tokens = self._decode(budget)
        tokens += self._prefill(budget - tokens)
        tokens += self._admit(budget - tokens)
        if not tokens:
            self._unblock()
        return self.step_time.seconds(self._lengths, tokens)

    def end_step(self, seconds: float) -> None:
        """After so many seconds, which may be more than its own (see `data_parallel`)."""
        self.ledger.note(self.now, seconds, self.running, len(self.waiting))
        self.now += seconds
        self._finish()

    # --- the three kinds of work -------------------------------------------------------------
    def _decode(self, budget: int) -> int:
        """One token for each decoding request, and the drafted ones after it, as many requests as
        the budget allows."""
        drafts = min(self.manager.limits.num_lookahead_tokens, max(0, budget - 1))
        self._lengths = ListedLengths()
        if drafts:
            return self._decode_each(budget, drafts)
        # All of them fit the budget: each began to decode in a step that had a token left for it.
        for item in self._loose:
            self._standing.join(item)
        self._loose.clear()
        while num := self._standing.num:
            try:
                self._standing.step()
            except OutOfBlocks as error:
                self._note_dry(error)
                self._preempt()
                continue
            self.counts.stored_tokens += num
            self._lengths = self._standing
            return num
        return 0

    def _decode_each(self, budget: int, drafts: int) -> int:
        """The same where they differ in what they store."""
        most = budget // (1 + drafts)
        while batch := [item for item in self.running if item.stored == item.done][:most]:
            try:
                self.manager.append(
                    [item.number for item in batch], [item.own for item in batch], drafts
                )
            except OutOfBlocks as error:
                self._note_dry(error)
                self._preempt()
                continue
            for item in batch:
                item.stored += 1
                item.done += 1
            self.counts.stored_tokens += len(batch)
            self._lengths = ListedLengths([item.stored for item in batch])
            self._accept(batch, drafts)
            return len(batch) * (1 + drafts)
        return 0

    def _accept(self, batch: list[Traffic], drafts: int) -> None:
        """Drafted tokens in order, each by chance, until one is rejected or the answer is whole."""
        rate, random = self.options.acceptance_rate, self._random.random
        for item in batch:
            most = min(drafts, item.target - item.stored)
            accepted = 0
            while accepted < most and random() < rate:
                accepted += 1
            self.manager.accept(item.number, accepted, [item.own] * accepted)
            item.stored += accepted
            item.done += accepted
            self.counts.stored_tokens += accepted
            self.counts.drafted_tokens += drafts
            self.counts.accepted_tokens += accepted

    def _prefill(self, budget: int) -> int:
        """The next chunk of prompts that are partly stored."""
        used = 0
        for item in self._reading:
            if used == budget:
                break
            used += self._chunk(item, budget - used)
        if used:
            self._loose += [item for item in self._reading if item.stored == item.done]
            self._reading = [item for item in self._reading if item.stored < item.done]
        return used

    def _admit(self, budget: int) -> int:
        """Waiting requests in order, until one does not fit."""
        used = 0
        while self.waiting and used < budget and not self._admission_blocked:
            if len(self.running) >= self.max_num_seqs:
                break
            item = self.waiting[0]
            hit = self._add(item)
            by_group = self.hits.found(item, hit)
            item.stored, item.serial = hit, self._admitted
            got = self._chunk(item, budget - used)
            if not got:
                self.manager.free(item.number)
                item.stored = 0
                self._admission_blocked = True
                break
            self.waiting.popleft()
            self.running.append(item)
            (self._loose if item.stored == item.done else self._reading).append(item)
            self._admitted += 1
            self._note_admitted(item)
            self.hits.note(item, hit, by_group)
            used += got
        return used

    def _add(self, item: Traffic) -> int:
        """The manager's new request; how many of its tokens are cached."""
        manager = self.manager
        if not manager.prefix_caching:
            return manager.add_request(item.number)
        if self._names.suit(item):
            return manager.add_request(item.number, chain=self._names.chain(item))
        return manager.add_request(item.number, item.tokens())

    def _chunk(self, item: Traffic, budget: int) -> int:
        """Store up to budget tokens of what is known of the request; 0 if the pool has no room."""
        new = min(budget, item.done - item.stored)
        if new < 1:
            return 0
        try:
            self.manager.allocate(item.number, new)
        except OutOfBlocks as error:
            self._note_dry(error)
            return 0
        item.stored += new
        self.counts.stored_tokens += new
        return new

    # --- making room ------------------------------------------------------------------------
    def _preempt(self) -> None:
        """The youngest request gives its blocks back and waits again."""
        item = self.running.pop()
        self._withdraw(item)
        item.preempted += 1
        self.counts.preemptions += 1
        self.preempted_s.append(self.now)
        self.waiting.appendleft(item)
        self._admission_blocked = False

    def _unblock(self) -> None:
        """A step in which nothing moved: preempt, or turn away what does not fit even alone."""
        if len(self.running) > 1:
            self._preempt()
            return
        if self.running:
            self._withdraw(self.running.pop())
        else:
            self.waiting.popleft()
        self.counts.never_fit += 1
        self._admission_blocked = False

    def _withdraw(self, item: Traffic) -> None:
        """One that was running and is not finished: its blocks go back."""
        if item.stands:
            self._standing.leave(item)
        else:
            (self._loose if item.stored == item.done else self._reading).remove(item)
        self.manager.free(item.number)
        item.stored = 0

    def _finish(self) -> None:
        self._note_answers()
        over = self._over()
        for item in over:
            self.manager.free(item.number)
            self.counts.finished += 1
            self.on_finish(self.counts.finished)
            self.latencies.finished(item, self.now)
            self._admission_blocked = False
        if over:
            self.running = [item for item in self.running if item.stored < item.target]

    def _over(self) -> list[Traffic]:
        """Those that are finished, oldest first: they decode no longer."""
        over = self._standing.over()
        loose = [item for item in self._loose if item.stored >= item.target]
        if loose:
            self._loose = [item for item in self._loose if item.stored < item.target]
            over += loose
        return sorted(over, key=by_serial) if len(over) > 1 else over

    # --- notes ------------------------------------------------------------------------------
    def _note_admitted(self, item: Traffic) -> None:
        # One that was preempted in this very step is there already.
        if item.first_token_s is None and item not in self._unanswered:
            self._unanswered.append(item)
        self.latencies.admitted(item, self.arrival(item), self.now)

    def _note_answers(self) -> None:
        """The step that stores the last token of a prompt gives the first token."""
        if not self._unanswered:
            return
        still = []
        for item in self._unanswered:
            if not item.stored:
                continue  # preempted: it is admitted again
            if item.stored >= item.request.prompt_tokens:
                self.latencies.answered(item, self.arrival(item), self.now)
            else:
                still.append(item)
        self._unanswered = still

    def _note_dry(self, error: OutOfBlocks) -> None:
        if self.ran_dry is None:
            self.ran_dry = RanDry(
                token=self.counts.stored_tokens,
                held=sum(item.stored for item in self.running),
                time_s=self.now,
                running=len(self.running),
                reason=str(error).partition(";")[0],
            )
