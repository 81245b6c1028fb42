"""What is written down while a trace runs: blocks in use, and the closed form beside them.

At every step   entries = table entries of all requests (a shared block counts for each), and
                          the step's scratch
                in_use  = blocks of the pool with an owner
                steady  = sum over requests and groups of steady_blocks(its tokens), exact
                linear  = sum over requests of bytes_fixed + bytes_per_token * tokens, in blocks
so that in_use - linear = (in_use - entries) + (entries - steady) + (steady - linear): what sharing
saves, what prefill in flight and what waits to be freed takes, and how loose the line is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from kvpipe.blocks import BlockManager
from kvpipe.cache.plan import Capacity
from kvpipe.simulation.traffic import Traffic

_Counts = tuple[int, int, int, int]  # of a `Point`

MAX_POINTS = 2000  # of the plot; steps in between are summed up by their maximum


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Blocks in use minus Capacity's closed form at one step, and the three parts it is made of.
    linear_blocks: the closed form at that step."""

    time_s: float
    running: int
    in_use: int
    linear_blocks: float
    shared: int
    in_flight: int
    looseness: float

    @property
    def blocks(self) -> float:
        return self.in_use - self.linear_blocks


@dataclass(frozen=True, slots=True)
class Point:
    """The most of each count between the point before and time_s."""

    time_s: float
    in_use: int
    cached_free: int
    running: int
    waiting: int


@dataclass
class Ledger:
    """gap_every: steps between two measurements of the gap (a new peak of use is always one)."""

    manager: BlockManager
    capacity: Capacity | None
    gap_every: int = 16
    largest_gap: Gap | None = None
    peak_running: int = 0
    peak_in_use: int = 0
    busy_s: float = 0.0
    request_seconds: float = 0.0
    steps: int = 0
    idle: list[tuple[float, float]] = field(default_factory=list)  # seconds, from and to
    _points: list[tuple[float, _Counts]] = field(default_factory=list)
    _until: float = 0.0
    _stride: int = 1
    _merged: int = 0

    @cached_property
    def _shares_slots(self) -> bool:
        """The closed form counts whole slots, which requests share in sub-slots."""
        return any(group.blocks_per_slot > 1 for group in self.manager.config.groups)

    def note(self, time_s: float, step_s: float, running: list[Traffic], waiting: int) -> None:
        """After a step that began at time_s and took step_s."""
        pool = self.manager.pool
        in_use = pool.num_blocks - 1 - pool.num_free
        self._note_idle(time_s)
        self._until = time_s + step_s
        self.steps += 1
        self.busy_s += step_s
        self.request_seconds += step_s * len(running)
        self.peak_running = max(self.peak_running, len(running))
        if in_use > self.peak_in_use or self.steps % self.gap_every == 0:
            self._note_gap(time_s, in_use, running)
        self.peak_in_use = max(self.peak_in_use, in_use)
        self._note_point(time_s, (in_use, pool.num_cached_free, len(running), waiting))

    def _note_idle(self, time_s: float) -> None:
        """Nothing ran from the end of the step before until now: of many times the longest stay."""
        if not self.steps or time_s <= self._until + 1e-9:
            return
        self.idle.append((self._until, time_s))
        if len(self.idle) > 2 * MAX_POINTS:
            longest = sorted(self.idle, key=lambda span: span[0] - span[1])[:MAX_POINTS]
            self.idle = sorted(longest)

    def _note_gap(self, time_s: float, in_use: int, running: list[Traffic]) -> None:
        if self.capacity is None or self._shares_slots:
            return
        width = self.manager.config.bytes_per_block
        stored = [item.stored for item in running if item.stored]
        fixed, slope = self.capacity.bytes_fixed / width, self.capacity.bytes_per_token / width
        linear = sum(fixed + slope * tokens for tokens in stored)
        if self.largest_gap and abs(in_use - linear) <= abs(self.largest_gap.blocks):
            return
        steady = sum(
            table.spec.steady_blocks(tokens, self.manager.limits)
            for table in self.manager.tables
            for tokens in stored
        )
        entries = sum(self._entries(item.number) for item in running)
        entries += len(self.manager.scratch.slots)
        self.largest_gap = Gap(
            time_s=time_s,
            running=len(running),
            in_use=in_use,
            linear_blocks=linear,
            shared=entries - in_use,
            in_flight=entries - steady,
            looseness=linear - steady,
        )

    def _entries(self, number: int) -> int:
        groups: Iterable[int] = range(len(self.manager.tables))
        return sum(len(self.manager.block_ids(number, group)) for group in groups)

    @property
    def points(self) -> list[Point]:
        return [Point(time_s, *counts) for time_s, counts in self._points]

    def _note_point(self, time_s: float, counts: _Counts) -> None:
        """Plain tuples: this is done in every step."""
        if self._merged:
            counts = _most(self._points.pop()[1], counts)
        self._points.append((time_s, counts))
        self._merged = (self._merged + 1) % self._stride
        if len(self._points) > MAX_POINTS and not self._merged:
            pairs = zip(self._points[::2], self._points[1::2], strict=False)
            self._points = [(later[0], _most(first[1], later[1])) for first, later in pairs]
            self._stride *= 2


def _most(one: _Counts, other: _Counts) -> _Counts:
    a, b, c, d = one
    e, f, g, h = other
    return (a if a > e else e, b if b > f else f, c if c > g else g, d if d > h else h)
