"""The order in which free blocks that still hold reusable content are given up: oldest first.

A ring of block ids plus, for each block, the place where it lies in the ring. An entry is live iff
its block says so (`place[ring[p]] == p`), so a block is taken out of the middle (a prefix hit) by
forgetting its place: every operation is a few array operations, whatever the batch.

    ring   . . 7 3 9 5 . .      place[7] = 2, place[3] = -1 (was hit), place[9] = 4, place[5] = 5
              ^head     ^tail    -> pop(2) gives 7, 9
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.intp]
ABSENT = -1


class EvictionOrder:
    """LRU order over block ids in [0, num_blocks). 10 bytes a block, taken on first use."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._ring = np.empty(0, np.int32)
        self._place = np.empty(0, np.int32)
        self._ring_at, self._place_of = self._ring.data, self._place.data
        self._head = self._tail = 0
        self.count = 0

    @property
    def nbytes(self) -> int:
        return self._ring.nbytes + self._place.nbytes

    def append(self, ids: Ids) -> None:
        """Add blocks that are not in the order, each once; the first of ids is given up first."""
        distinct = self.append_distinct(ids)
        assert distinct, "a block is named twice"

    def append_distinct(self, ids: Ids) -> bool:
        """The same of blocks of which one may be named twice: then False, and none is added."""
        if not self._ring.size:
            # Half a pool of slack: a compaction pays for at least num_blocks / 2 appends.
            self._ring = np.empty(self._num_blocks + self._num_blocks // 2 + 64, np.int32)
            self._place = np.full(self._num_blocks, ABSENT, np.int32)
            self._ring_at, self._place_of = self._ring.data, self._place.data
        if self._tail + len(ids) > self._ring.size:
            self._compact()
        stop = self._tail + len(ids)
        self._ring[self._tail : stop] = ids
        places = np.arange(self._tail, stop, dtype=np.int32)
        self._place[ids] = places
        if self._place[ids].tobytes() != places.tobytes():
            self._place[ids] = ABSENT
            return False
        self._tail = stop
        self.count += len(ids)
        return True

    def remove(self, ids: Ids) -> None:
        """Take out blocks that are in the order, from wherever they lie."""
        self._place[ids] = ABSENT
        self.count -= len(ids)

    def pop(self, num: int) -> Ids:
        """The num oldest blocks, oldest first; num must not exceed count."""
        assert num <= self.count, f"{num} blocks asked of {self.count}"
        taken: list[Ids] = []
        missing = num
        while missing:
            stop = min(self._tail, self._head + max(missing, 64))
            ids, live = self._live(self._head, stop)
            live = live[:missing]
            missing -= len(live)
            taken.append(ids[live])
            self._head = stop if missing else self._head + int(live[-1]) + 1
        popped = taken[0] if len(taken) == 1 else np.concatenate((*taken, np.empty(0, np.intp)))
        self.remove(popped)
        return popped

    def pop_one(self) -> int:
        """The oldest block; count must not be 0."""
        head = self._head
        while self._place_of[self._ring_at[head]] != head:
            head += 1
        block: int = self._ring_at[head]
        self._head = head + 1
        self.remove_one(block)
        return block

    def remove_one(self, block: int) -> None:
        self._place_of[block] = ABSENT
        self.count -= 1

    def ids(self) -> Ids:
        """All blocks in the order, oldest first."""
        ids, live = self._live(self._head, self._tail)
        return ids[live]

    def _live(self, start: int, stop: int) -> tuple[Ids, Ids]:
        """The ring's entries in [start, stop), and which of them are live."""
        ids = self._ring[start:stop].astype(np.intp)
        return ids, np.flatnonzero(self._place[ids] == np.arange(start, stop))

    def _compact(self) -> None:
        live = self.ids()
        self._ring[: len(live)] = live
        self._place[live] = np.arange(len(live), dtype=np.int32)
        self._head, self._tail = 0, len(live)
