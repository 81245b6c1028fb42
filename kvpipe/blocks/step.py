"""The slots that one step of the engine writes, group by group, in the order they were granted.

Contiguous int64, filled as requests are granted tokens: nothing is gathered when a kernel asks.
"""

from __future__ import annotations

import numpy as np

from kvpipe.blocks.slots import LaterSlots, Slots


class GrowingSlots:
    """A contiguous run of slots that is emptied without being freed. Those of prompts are written
    out when somebody asks: a simulated engine never does."""

    def __init__(self) -> None:
        self._array = np.empty(1024, np.int64)
        self._at = self._array.data  # the same memory, for one slot at a time
        self._used = 0
        self._later: list[tuple[int, LaterSlots]] = []  # first place, and what belongs there

    def clear(self) -> None:
        self._used = 0
        if self._later:
            self._later.clear()

    def __len__(self) -> int:
        return self._used

    def push(self, slot: int) -> None:
        if self._used == len(self._array):
            self._make_room(1)
        self._at[self._used] = slot
        self._used += 1

    def extend(self, slots: Slots) -> None:
        start = self._make_room(len(slots))
        self._used = start + len(slots)
        self._array[start : self._used] = slots

    def extend_later(self, slots: LaterSlots) -> None:
        start = self._make_room(len(slots.positions))
        self._used = start + len(slots.positions)
        self._later.append((start, slots))

    def view(self) -> Slots:
        for start, slots in self._later:
            self._array[start : start + len(slots.positions)] = slots.now()
        self._later.clear()
        return self._array[: self._used]

    def _make_room(self, num: int) -> int:
        """For num more; where they begin."""
        stop = self._used + num
        if stop > len(self._array):
            self._array = np.concatenate((self._array, np.empty(stop, np.int64)))
            self._at = self._array.data
        return self._used


class GroupSlots:
    """all: of every token granted in this step. decode: of those that `append` granted."""

    def __init__(self, keep_decode: bool) -> None:
        self.all = GrowingSlots()
        self.decode = GrowingSlots()
        self._keep_decode = keep_decode
        if not keep_decode:  # one call less a step and request
            self.clear, self.push_decode = self.all.clear, self.all.push

    def clear(self) -> None:
        self.all.clear()
        self.decode.clear()

    def push_decode(self, slot: int) -> None:
        self.all.push(slot)
        self.decode.push(slot)

    def extend_decode(self, slots: Slots) -> None:
        self.all.extend(slots)
        if self._keep_decode:
            self.decode.extend(slots)
