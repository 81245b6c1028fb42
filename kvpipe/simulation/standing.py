"""The requests that decode, while nothing but time changes for most of them.

A step costs what changes in it: who needs a block (`StandingBatch`), who has its last token, and
sums of lengths, which grow by one a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvpipe.blocks.standing import StandingBatch
from kvpipe.simulation.traffic import Traffic


@dataclass
class Capped:
    """The sum of lengths, each counted up to `most`. full_at: who reaches it at which step."""

    most: int
    total: int = 0
    _growing: int = 0
    _full_at: dict[int, set[int]] = field(default_factory=dict)

    def join(self, item: Traffic, steps: int) -> None:
        stored = item.stored
        self.total += min(stored, self.most)
        if stored < self.most:
            self._growing += 1
            self._full_at.setdefault(steps + self.most - stored, set()).add(item.serial)

    def leave(self, item: Traffic, steps: int) -> None:
        stored = item.stored
        self.total -= min(stored, self.most)
        if stored < self.most:
            self._growing -= 1
            self._full_at[steps + self.most - stored].remove(item.serial)

    def step(self, steps: int) -> None:
        """The step after which so many were done."""
        self.total += self._growing
        if full := self._full_at.pop(steps, None):
            self._growing -= len(full)


@dataclass
class Standing:
    """Of one server; the lengths of its members, too (`Lengths`)."""

    batch: StandingBatch
    total: int = 0
    _members: dict[int, Traffic] = field(default_factory=dict)  # by number
    _over_at: dict[int, list[Traffic]] = field(default_factory=dict)
    _capped: dict[int, Capped] = field(default_factory=dict)

    @property
    def num(self) -> int:
        return len(self._members)

    def join(self, item: Traffic) -> None:
        steps = self.batch.steps
        self.batch.join(item.number, item.own, item.serial)
        self._members[item.number] = item
        self._over_at.setdefault(steps + item.target - item.stored, []).append(item)
        self.total += item.stored
        for capped in self._capped.values():
            capped.join(item, steps)
        item.stand(self.batch)

    def leave(self, item: Traffic) -> None:
        steps = self.batch.steps
        self.batch.leave(item.number)
        del self._members[item.number]
        self._over_at[steps + item.target - item.stored].remove(item)
        self.total -= item.stored
        for capped in self._capped.values():
            capped.leave(item, steps)
        item.stand(None)

    def leave_all(self) -> list[Traffic]:
        """Who was in, oldest first."""
        items = sorted(self._members.values(), key=by_serial)
        for item in items:
            self.leave(item)
        return items

    def step(self) -> None:
        """A token more of each. OutOfBlocks: nothing has changed."""
        self.batch.step()
        self.total += len(self._members)
        for capped in self._capped.values():
            capped.step(self.batch.steps)

    def over(self) -> list[Traffic]:
        """Those that have their last token; they leave."""
        items = list(self._over_at.get(self.batch.steps, ()))
        for item in items:
            self.leave(item)
        self._over_at.pop(self.batch.steps, None)
        return items

    # --- lengths -------------------------------------------------------------------------------
    def within(self, most: int) -> int:
        if most not in self._capped:
            self._capped[most] = capped = Capped(most)
            for item in self._members.values():
                capped.join(item, self.batch.steps)
        return self._capped[most].total

    def each(self) -> Sequence[int]:
        return [item.stored for item in self._members.values()]


def by_serial(item: Traffic) -> int:
    return item.serial
