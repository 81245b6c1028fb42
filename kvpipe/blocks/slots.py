"""Where positions of a request lie in the pool: slot = block * block_size + place in the block.

With context parallel ranks a block table's index spans as many tokens on all of them together; each
rank keeps one token in turn, so that positions of other ranks have no slot here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]


class Paging(NamedTuple):
    """span: tokens that an index stands for. rank: of this one among the context parallel ranks."""

    span: int
    block_size: int
    ranks: int
    rank: int

    def indices(self, positions: range) -> slice:
        """The table's indices that positions fall into."""
        return slice(positions.start // self.span, (positions.stop - 1) // self.span + 1)

    def slots(self, held: npt.NDArray[np.int32], positions: range) -> Slots:
        """[len(positions)] slot of each on this rank, -1 where it has none. held: the blocks at
        `indices(positions)`, as far as the table reaches; 0 or less where none is."""
        if not positions:
            return np.empty(0, np.int64)
        wanted = self.indices(positions)
        blocks = np.full(wanted.stop - wanted.start, -1, np.int64)
        blocks[: len(held)] = held
        starts = np.where(blocks > 0, blocks * self.block_size, -1)
        if len(positions) >= self.span:
            skipped = wanted.start * self.span
            slots = self._whole(starts).reshape(-1)
            return slots[positions.start - skipped : positions.stop - skipped]
        index, offset = np.divmod(np.arange(positions.start, positions.stop), self.span)
        start = starts[index - wanted.start]
        elsewhere = offset % self.ranks != self.rank
        return np.where((start < 0) | elsewhere, -1, start + offset // self.ranks)

    def _whole(self, starts: Slots) -> Slots:
        """[len(starts), span] the slots of whole indices; starts: each one's first, -1: none."""
        offset = np.arange(self.span)
        slots: Slots = starts[:, None] + offset // self.ranks
        slots[starts < 0] = -1
        if self.ranks > 1:
            slots[:, offset % self.ranks != self.rank] = -1
        return slots


class LaterSlots(NamedTuple):
    """The slots of positions, written out once somebody asks: a simulated engine never does.
    held: the row's blocks as they were when the positions were granted."""

    paging: Paging
    held: npt.NDArray[np.int32]
    positions: range

    def now(self) -> Slots:
        return self.paging.slots(self.held, self.positions)
