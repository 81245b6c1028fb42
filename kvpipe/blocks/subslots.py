"""Sub-slots: k blocks of one group in one block of the pool, which then is the group's alone.

    pool's blocks     | 1         | 2         | 3         |      a state fills one
    a group, k = 4    | 4 5 6 7   |           | 12 . 14 . |      blocks of a group: slot * k + place

The lowest free place is handed out first, and a slot is taken from the pool only when no place is
free in those that the group has; a slot whose last block goes returns to the pool at once. So a
group never has more slots than the most blocks it ever had at one time fill, whatever came and
went; but of those, places may stand empty that only this group can use.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.checks import Ids
from kvpipe.blocks.errors import BlockError
from kvpipe.blocks.pool import BlockPool
from kvpipe.specs.base import cdiv


class SubSlotPool:
    """The blocks of one group. per_slot: places of a slot. num_live: blocks in use."""

    def __init__(self, pool: BlockPool, per_slot: int) -> None:
        self.pool, self.per_slot = pool, per_slot
        self.num_live = 0
        self._references: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}  # slot of ours -> free places of it, a heap
        self._open: list[int] = []  # slots with a free place, a heap; some have none any more
        self._listed: set[int] = set()  # those that are in it

    @property
    def num_slots(self) -> int:
        """Blocks of the pool that are this group's."""
        return len(self._free)

    @property
    def num_holes(self) -> int:
        """Free places in them: no other group can use these."""
        return self.num_slots * self.per_slot - self.num_live

    def references(self, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """[n] references of each block; 0 for a free one."""
        listed = np.asarray(ids).tolist()
        return np.array([self._references.get(block, 0) for block in listed], np.int32)

    def slots_to_take(self, num: int, dropped: Ids | None = None) -> int:
        """Blocks of the pool that `num` blocks need, once the dropped ones were freed; below zero
        where that gives back more than they need."""
        gone, emptied = self._gone(dropped)
        live = self.num_live - gone
        kept = self.num_slots - emptied
        return max(0, cdiv(num - (kept * self.per_slot - live), self.per_slot)) - emptied

    def _gone(self, dropped: Ids | None) -> tuple[int, int]:
        """Blocks and slots that would be free if each dropped block lost a reference."""
        if dropped is None or not len(dropped):
            return 0, 0
        times = Counter(dropped.tolist())
        freed = Counter(
            block // self.per_slot for block, n in times.items() if self._references[block] == n
        )
        held = {slot: self.per_slot - len(self._free[slot]) for slot in freed}
        return freed.total(), sum(freed[slot] == held[slot] for slot in freed)

    # --- taking ------------------------------------------------------------------------------
    def allocate(self, num: int) -> Ids:
        """[num] ids with one reference each, the lowest free places first. OutOfBlocks, and nothing
        was taken, where the pool has too few blocks for them."""
        if (more := self.slots_to_take(num)) > 0:
            for slot in self.pool.allocate(more).tolist():
                self._free[slot] = list(range(self.per_slot))
                self._list(slot)
        taken: list[int] = []
        while len(taken) < num:
            taken += self._from_lowest(num - len(taken))
        self._references.update(dict.fromkeys(taken, 1))
        self.num_live += num
        return np.array(taken, np.intp)

    def _from_lowest(self, most: int) -> list[int]:
        """Up to so many places of the lowest slot that has any."""
        slot = self._open[0]
        places = self._free.get(slot)
        if not places:
            heappop(self._open)
            self._listed.discard(slot)
            return []
        first = slot * self.per_slot
        if most >= len(places):
            found = sorted(places)
            places.clear()
        else:
            found = [heappop(places) for _ in range(most)]
        return [first + place for place in found]

    def share(self, ids: npt.ArrayLike) -> None:
        """One more reference for blocks in use."""
        listed = np.asarray(ids).tolist()
        self._refuse(listed)
        for block in listed:
            self._references[block] += 1

    # --- giving back -------------------------------------------------------------------------
    def free(self, ids: npt.ArrayLike) -> None:
        """Drop one reference of each block."""
        listed = np.asarray(ids).tolist()
        self._refuse(listed)
        emptied: list[int] = []
        for block in listed:
            left = self._references[block] - 1
            if left:
                self._references[block] = left
                continue
            del self._references[block]
            self.num_live -= 1
            slot, place = divmod(block, self.per_slot)
            places = self._free[slot]
            heappush(places, place)
            if len(places) == self.per_slot:
                del self._free[slot]
                emptied.append(slot)
            elif len(places) == 1:
                self._list(slot)
        if emptied:
            self.pool.free(np.array(emptied, np.intp))

    def _list(self, slot: int) -> None:
        if slot not in self._listed:
            self._listed.add(slot)
            heappush(self._open, slot)

    def _refuse(self, listed: list[int]) -> None:
        """BlockError where one is not in use so often, before anything has moved."""
        for block, times in Counter(listed).items():
            if self._references.get(block, 0) < times:
                raise BlockError(f"block {block} is not in use: it was freed twice, or never ours")
