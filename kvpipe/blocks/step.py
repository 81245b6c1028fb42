"""The slots that one step of the engine writes, group by group, in the order they were granted.

Contiguous int64, filled as requests are granted tokens: nothing is gathered when a kernel asks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]


class GrowingSlots:
    """A contiguous run of slots that is emptied without being freed."""

    def __init__(self) -> None:
        self._array = np.empty(1024, np.int64)
        self._at = self._array.data  # the same memory, for one slot at a time
        self._used = 0

    def clear(self) -> None:
        self._used = 0

    def push(self, slot: int) -> None:
        if self._used == len(self._array):
            self.extend(np.array([slot]))
            return
        self._at[self._used] = slot
        self._used += 1

    def extend(self, slots: Slots) -> None:
        stop = self._used + len(slots)
        if stop > len(self._array):
            self._array = np.concatenate((self._array, np.empty(stop, np.int64)))
            self._at = self._array.data
        self._array[self._used : stop] = slots
        self._used = stop

    def view(self) -> Slots:
        return self._array[: self._used]


class GroupSlots:
    """all: of every token granted in this step. decode: of those that `append` granted."""

    def __init__(self, keep_decode: bool) -> None:
        self.all = GrowingSlots()
        self.decode = GrowingSlots()
        self._keep_decode = keep_decode

    def clear(self) -> None:
        self.all.clear()
        if self._keep_decode:
            self.decode.clear()

    def push_decode(self, slot: int) -> None:
        self.all.push(slot)
        if self._keep_decode:
            self.decode.push(slot)

    def extend(self, slots: Slots, *, decode: bool) -> None:
        self.all.extend(slots)
        if decode and self._keep_decode:
            self.decode.extend(slots)
