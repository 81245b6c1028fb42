"""The block table of one cache group: which block holds index i of each request.

R rows (one a live request), W indices: ids [R, W] int32. Index i of a row covers the tokens
[i * span, (i + 1) * span). What a row must hold, and which positions a step fills, is asked of the
spec (`resident`, `written`), for a whole run of decode steps at once (`DecodeRun`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvpipe.specs.base import RequestLimits, cdiv
from kvpipe.stages.grouping.base import KVCacheGroupSpec

Ids = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Change:
    """What one step does to one row, as indices of the row: blocks that are no longer needed, that
    must be had, and that must be copied because another request reads them too."""

    want: range
    drop: Sequence[int]
    take: Sequence[int]
    copy: Sequence[int] = ()

    @property
    def num_new(self) -> int:
        return len(self.take) + len(self.copy)


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Steps of one token from `computed` tokens on that need nothing new until `until` tokens are
    stored: the first step fills `position` (-1: none), each later one `advance` further."""

    until: int
    position: int
    advance: int


class GroupTable:
    """Rows are numbers that the manager gives to requests. No block is allocated or freed here."""

    def __init__(
        self, group: KVCacheGroupSpec, limits: RequestLimits, num_rows: int, absent: int, rank: int
    ) -> None:
        """absent: what ids holds where nothing is held. rank: of this rank among the context
        parallel ranks, which keep one token each in turn."""
        self.spec, self.limits, self.absent, self.rank = group.spec, limits, absent, rank
        self.span = group.spec.tokens_per_block(limits)
        self.block_size = group.spec.block_size
        self.ranks = self.span // self.block_size
        # A state keeps its speculative tokens in blocks of its own (`resident` counts them).
        first = group.spec.of_layer(group.layer_names[0]) if group.layer_names else group.spec
        self.lookahead_in_slots = not first.is_state
        self.ids = np.full((num_rows, 1), absent, np.int32)
        self.held = [range(0)] * num_rows
        self.next_slot = np.full(num_rows, -1, np.int64)
        self.advance = np.zeros(num_rows, np.int64)
        self.decode_run = lru_cache(maxsize=1 << 14)(self._decode_run)

    @property
    def caches_prefixes(self) -> bool:
        """Whether a full block stays as it is and can serve another request."""
        written_later = self.spec.written(self.span, 1, self.limits)
        return self.spec.hit_length([True]) > 0 and written_later.start >= self.span

    # --- what a step needs -------------------------------------------------------------------
    def change(
        self, row: int, computed: int, new: int, lookahead: int, limits: RequestLimits
    ) -> Change:
        """For a step that brings `new` tokens and room for `lookahead` more."""
        reach = new + lookahead if self.lookahead_in_slots else new
        want, held = self.spec.resident(computed, reach, limits), self.held[row]
        if want == held:
            return Change(want, (), ())
        # Content below this index was written or skipped: a block for it now would stay empty.
        lost = self.content_stop(computed, limits)
        if want.step == held.step == 1 and held.start <= want.start <= held.stop <= want.stop:
            drop: Sequence[int] = range(held.start, want.start)
            take: Sequence[int] = range(max(held.stop, min(lost, want.stop)), want.stop)
        else:
            drop = [i for i in held if i not in want]
            take = [i for i in want if i not in held and i >= lost]
        return Change(want, self._present(row, drop), take)

    def written_index(self, row: int, computed: int, new: int, limits: RequestLimits) -> int | None:
        """The index that the step writes into although the row holds it already, if any."""
        written = self.spec.written(computed, new, limits)
        index = written.start // self.span
        if not written or index not in self.held[row] or self.ids[row, index] <= 0:
            return None
        return index

    def content_stop(self, computed: int, limits: RequestLimits) -> int:
        """One more than the last index into which the first `computed` tokens wrote."""
        return cdiv(self.spec.written(0, computed, limits).stop, self.span) if computed else 0

    def _decode_run(self, computed: int, limits: RequestLimits) -> DecodeRun:
        """resident never goes back as tokens are added, so where it changes is found by halving."""
        resident, written = self.spec.resident, self.spec.written
        want = resident(computed, 1, limits)
        same, changed = computed, (computed // self.span + 1) * self.span if self.ranks == 1 else 0
        if changed - 1 > computed and resident(changed - 1, 1, limits) == want:
            same = changed - 1
        while changed - same > 1:
            middle = (same + changed) // 2
            if resident(middle, 1, limits) == want:
                same = middle
            else:
                changed = middle
        now, later = written(computed, 1, limits), written(computed + 1, 1, limits)
        position = now.start if now else -1
        return DecodeRun(same + 1, position, int(bool(now) and later.start == position + 1))

    # --- rows ------------------------------------------------------------------------------
    def _present(self, row: int, indices: Sequence[int]) -> Sequence[int]:
        """Those indices of the row that have a block."""
        if not len(indices):
            return indices
        ids = self.ids[row, indices[0] : indices[-1] + 1]
        if isinstance(indices, range) and indices.step == 1 and ids.min() > 0:
            return indices
        return [i for i in indices if self.ids[row, i] > 0]

    def blocks(self, row: int, indices: Sequence[int] | None = None) -> Ids:
        """The block ids at those indices (None: all that the row holds, in order)."""
        if indices is None:
            indices = self._present(row, self.held[row])
        if isinstance(indices, range) and indices.step == 1:
            return self.ids[row, indices.start : indices.stop].astype(np.intp)
        return self.ids[row, list(indices)].astype(np.intp)

    def put(self, row: int, indices: Sequence[int], blocks: npt.ArrayLike) -> None:
        """Enter blocks at indices, widening the table as needed."""
        if not len(indices):
            return
        self._widen(indices[-1] + 1)
        if isinstance(indices, range) and indices.step == 1:
            self.ids[row, indices.start : indices.stop] = blocks
        else:
            self.ids[row, list(indices)] = blocks

    def clear(self, row: int) -> None:
        self.ids[row] = self.absent
        self.held[row] = range(0)
        self.next_slot[row], self.advance[row] = -1, 0

    def _widen(self, width: int) -> None:
        rows, have = self.ids.shape
        if width > have:
            wider = np.full((rows, max(width, 2 * have)), self.absent, np.int32)
            wider[:, :have] = self.ids
            self.ids = wider

    # --- slots -------------------------------------------------------------------------------
    def slots(self, row: int, positions: range) -> npt.NDArray[np.int64]:
        """[len(positions)] slot of each position of the row on this rank, -1 where it has none."""
        if not positions:
            return np.empty(0, np.int64)
        at = np.arange(positions.start, positions.stop, dtype=np.int64)
        index = at // self.span
        blocks = self.ids[row, np.minimum(index, self.ids.shape[1] - 1)].astype(np.int64)
        offset = at - index * self.span
        slots: npt.NDArray[np.int64] = blocks * self.block_size + offset // self.ranks
        missing = (blocks <= 0) | (index >= self.ids.shape[1])
        slots[missing | (offset % self.ranks != self.rank)] = -1
        return slots

    def start_run(self, row: int, computed: int, limits: RequestLimits) -> int:
        """Prepare the slots of decode steps from `computed` tokens on; until how many tokens."""
        run = self.decode_run(computed, limits)
        slot = -1
        if run.position >= 0:
            index, offset = divmod(run.position, self.span)
            block = int(self.ids[row, index])
            if block > 0 and offset % self.ranks == self.rank:
                slot = block * self.block_size + offset // self.ranks
        self.next_slot[row] = slot
        self.advance[row] = run.advance if slot >= 0 else 0
        return run.until
