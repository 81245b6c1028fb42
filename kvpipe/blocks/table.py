"""The block table of one cache group: which block holds index i of each request.

R rows (one a live request), W indices: ids [R, W] int32. Index i of a row covers the tokens
[i * span, (i + 1) * span). What a row must hold, and which positions a step fills, is asked of the
spec (`resident`, `written`), and remembered where requests only decode (`DecodePlan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.decode import ADVANCE, DROP, POSITION, SIMPLE, TAKE, DecodePlan, DecodeStep
from kvpipe.blocks.request import LiveRequest
from kvpipe.blocks.slots import LaterSlots, Paging
from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.specs.answers import held_at
from kvpipe.specs.base import RequestLimits, cdiv
from kvpipe.specs.runs import Runs, has, indices

Ids = npt.NDArray[np.intp]


class Change(NamedTuple):
    """What one step does to one row, as indices of the row: blocks that are no longer needed, that
    must be had, and that must be copied because another request reads them too. aside: indices that
    lie in scratch for this step. moved: (old, new) indices of blocks whose content goes to scratch
    while they become the blocks of tokens that stay (see `scratch`)."""

    want: Runs
    drop: Sequence[int]
    take: Sequence[int]
    copy: Sequence[int] = ()
    aside: Sequence[int] = ()
    moved: Sequence[tuple[int, int]] = ()

    @property
    def num_new(self) -> int:
        return len(self.take) + len(self.copy)


class GroupTable:
    """Rows are numbers that the manager gives to requests. No block is allocated or freed here."""

    def __init__(
        self, group: KVCacheGroupSpec, limits: RequestLimits, num_rows: int, absent: int, rank: int
    ) -> None:
        """absent: what ids holds where nothing is held. rank: of this rank among the context
        parallel ranks, which keep one token each in turn."""
        self.spec, self.limits, self.absent, self.rank = group.block_spec, limits, absent, rank
        self.span = self.spec.tokens_per_block(limits)
        self.block_size = self.spec.block_size
        self.ranks = self.span // self.block_size
        self.paging = Paging(self.span, self.block_size, self.ranks, rank)
        # A state keeps its speculative tokens in blocks of its own (`resident` counts them).
        first = group.spec.of_layer(group.layer_names[0]) if group.layer_names else group.spec
        self.is_state = first.is_state
        self.ids = np.full((num_rows, 1), absent, np.int32)
        # The same memory, for one entry at a time (here and below).
        self.id_at = self.ids.data
        self.held: list[Runs] = [()] * num_rows
        self.next_slot = np.full(num_rows, -1, np.int64)
        self.advance = np.zeros(num_rows, np.int64)
        self.next_slot_of, self.advance_of = self.next_slot.data, self.advance.data
        self.steady_plan = DecodePlan(self.spec, limits, self.span, self.ranks)
        self._decode_plans = {limits: self.steady_plan}

    @property
    def caches_prefixes(self) -> bool:
        """Whether a full block stays as it is and can serve another request."""
        return self.spec.caches_prefixes(self.limits)

    # --- what a step needs -------------------------------------------------------------------
    def change(
        self, row: int, computed: int, new: int, lookahead: int, limits: RequestLimits
    ) -> Change:
        """For a step that brings `new` tokens and room for `lookahead` more."""
        reach = new if self.is_state else new + lookahead
        want, held = held_at(self.spec, computed, reach, limits), self.held[row]
        if want == held:
            return Change(want, (), ())
        # Content below this index was written or skipped: a block for it now would stay empty.
        lost = self.content_stop(computed, limits)
        if len(want) == 1 and len(held) < 2:  # one run that moves on: no index is looked at
            new_run, old = want[0], held[0] if held else want[0][:0]
            if old.start <= new_run.start <= old.stop <= new_run.stop:
                take = range(max(old.stop, min(lost, new_run.stop)), new_run.stop)
                drop = range(old.start, new_run.start)
                return Change(want, self._present(row, drop), take)
        gone = [i for i in indices(held) if not has(want, i)]
        missing = [i for i in indices(want) if i >= lost and not has(held, i)]
        return Change(want, self._present(row, gone), missing)

    def written_index(self, row: int, computed: int, new: int, limits: RequestLimits) -> int | None:
        """The index that the step writes into although the row holds it already, if any."""
        written = self.spec.written(computed, new, limits)
        index = written.start // self.span
        if not written or not has(self.held[row], index) or self.ids[row, index] <= 0:
            return None
        return index

    def content_stop(self, computed: int, limits: RequestLimits) -> int:
        """One more than the last index into which the first `computed` tokens wrote."""
        return cdiv(self.spec.written(0, computed, limits).stop, self.span) if computed else 0

    # --- rows ------------------------------------------------------------------------------
    def _present(self, row: int, at: Sequence[int]) -> Sequence[int]:
        """Those indices of the row that have a block."""
        if not len(at):
            return at
        if isinstance(at, range) and self.ids[row, at.start : at.stop].min() > 0:
            return at
        return [i for i in at if self.ids[row, i] > 0]

    def blocks(self, row: int, at: Sequence[int] | None = None) -> Ids:
        """The block ids at those indices (None: all that the row holds, in order)."""
        if at is None:
            at = indices(self.held[row])
            if isinstance(at, range):  # one run, most often with a block at each of its indices
                blocks = self.ids[row, at.start : at.stop].astype(np.intp)
                if not len(blocks) or np.minimum.reduce(blocks) > 0:
                    return blocks
            at = self._present(row, at)
        if isinstance(at, range):
            return self.ids[row, at.start : at.stop].astype(np.intp)
        return self.ids[row, list(at)].astype(np.intp)

    def put(self, row: int, at: Sequence[int], blocks: npt.ArrayLike) -> None:
        """Enter blocks at ascending indices, widening the table as needed."""
        if not len(at):
            return
        self._widen(at[-1] + 1)
        if isinstance(at, range):
            self.ids[row, at.start : at.stop] = blocks
        else:
            self.ids[row, list(at)] = blocks

    def clear(self, row: int) -> None:
        self.ids[row] = self.absent
        self.held[row] = ()
        self.next_slot[row], self.advance[row] = -1, 0

    def _widen(self, width: int) -> None:
        rows, have = self.ids.shape
        if width > have:
            wider = np.full((rows, max(width, 2 * have)), self.absent, np.int32)
            wider[:, :have] = self.ids
            self.ids, self.id_at = wider, wider.data

    # --- slots -------------------------------------------------------------------------------
    def slots(self, row: int, positions: range) -> npt.NDArray[np.int64]:
        """[len(positions)] slot of each position of the row on this rank, -1 where it has none."""
        return self.later_slots(row, positions).now()

    def later_slots(self, row: int, positions: range) -> LaterSlots:
        """The same, not yet written out: the row may change meanwhile."""
        held = self.ids[row, self.paging.indices(positions)].copy()
        return LaterSlots(self.paging, held, positions)

    # --- drafted tokens (see `drafts`) ----------------------------------------------------------
    def draft_room(self, limits: RequestLimits) -> int:
        """How many drafted tokens a step has room for: of states, the blocks held beside the one
        that it ends in; otherwise as many as one likes."""
        if not self.is_state:
            return limits.max_model_len
        (held,) = held_at(self.spec, 1, 1, limits)[-1:] or (range(1),)
        return held.stop - 1 - self.spec.written(1, 1, limits).start // self.span

    def draft_slots(self, live: LiveRequest, computed: int, num: int) -> npt.NDArray[np.int64]:
        """[1 + num] where the token after `computed` and the num drafted after it are written; of a
        state the block after each of them. -1: nowhere (a draft beyond max_model_len, too)."""
        slots = np.full(1 + num, -1, np.int64)
        if self.is_state:
            index, offset = divmod(self.spec.written(computed, 1, live.limits).start, self.span)
            blocks = self.ids[live.row, index : index + 1 + num].astype(np.int64)
            found = np.where(blocks > 0, blocks * self.block_size + offset, -1)
        else:
            most = min(1 + num, live.limits.max_model_len - computed)
            found = self.slots(live.row, self.spec.written(computed, most, live.limits))
        slots[: len(found)] = found
        return slots

    def rewind(self, live: LiveRequest, stored: int, accepted: int) -> None:
        """A state's row once `accepted` drafts after `stored` tokens stay: the running state at the
        index of its last token, a boundary's that was passed at its own."""
        ids, limits = self.ids[live.row], live.limits
        first = self.spec.written(stored - 1, 1, limits).start // self.span
        order = list(range(accepted + 1))  # which draft's state goes to first + i
        homes: dict[int, int] = {}  # the last token of each index wins
        for draft in order:
            homes[self.spec.written(stored - 1 + draft, 1, limits).start // self.span] = draft
        chosen = [draft for _, draft in sorted(homes.items())]
        order = chosen + [draft for draft in order if draft not in chosen]
        blocks = ids[first : first + len(order)].copy()
        ids[first : first + len(order)] = blocks[order]

    def decode_plan(self, limits: RequestLimits) -> DecodePlan:
        if limits not in self._decode_plans:
            self._decode_plans[limits] = DecodePlan(self.spec, limits, self.span, self.ranks)
        return self._decode_plans[limits]

    def start_run(self, row: int, computed: int, limits: RequestLimits) -> int:
        """Prepare the slots of decode steps from `computed` tokens on; until how many tokens."""
        step = self.decode_plan(limits).step(computed)
        self.start_slot(row, step)
        return step.until

    def enter_step(self, row: int, step: DecodeStep, block: int) -> None:
        """What a decode step leaves in a row: block at the index it takes, if it takes one."""
        if step.take >= 0:
            self._widen(step.take + 1)
            self.id_at[row, step.take] = block
        self.held[row] = step.want
        self.start_slot(row, step)

    def drop_at(self, row: int, index: int) -> int:
        """Take out the block at an index; 0 or less where none is."""
        block: int = self.id_at[row, index]
        self.id_at[row, index] = self.absent
        return block

    def start_slot(self, row: int, step: DecodeStep) -> None:
        index, offset = divmod(max(0, step.position), self.span)
        block: int = self.id_at[row, index]
        if step.position < 0 or block <= 0 or offset % self.ranks != self.rank % self.ranks:
            self.next_slot_of[row], self.advance_of[row] = -1, 0
            return
        self.next_slot_of[row] = block * self.block_size + offset // self.ranks
        self.advance_of[row] = step.advance

    def _start_slots(self, rows: Ids, columns: npt.NDArray[np.int64]) -> None:
        position = columns[:, POSITION]
        index = position // self.span
        offset = position - index * self.span
        blocks = self.ids[rows, index].astype(np.int64)
        absent = (position < 0) | (blocks <= 0)
        if self.ranks > 1:
            absent |= offset % self.ranks != self.rank
            offset //= self.ranks
        slots, advance = blocks * self.block_size + offset, columns[:, ADVANCE].copy()
        slots[absent], advance[absent] = -1, 0
        self.next_slot[rows], self.advance[rows] = slots, advance


@dataclass(frozen=True, slots=True)
class SteadyStep:
    """The next decode step of rows that did nothing but decode: one block in, one out at most."""

    table: GroupTable
    rows: Ids
    columns: npt.NDArray[np.int64]
    wants: list[Runs]

    @property
    def is_simple(self) -> bool:
        return bool(self.columns[:, SIMPLE].all())

    @property
    def num_new(self) -> int:
        return int(np.count_nonzero(self.columns[:, TAKE] >= 0))

    def dropped(self) -> Ids:
        """Take out the blocks that are no longer needed; their ids (one may come twice)."""
        rows, ids = self.rows, self.table.ids
        at = (self.columns[:, DROP] >= 0).nonzero()[0]
        if not len(at):
            return np.empty(0, np.intp)
        where = rows[at], self.columns[at, DROP]
        blocks = ids[where].astype(np.intp)
        ids[where] = self.table.absent
        held: Ids = blocks[blocks > 0]
        return held

    def enter(self, fresh: Ids) -> None:
        """Put in the new blocks, and prepare the slots of this and the following steps."""
        table = self.table
        if len(fresh):
            at = (self.columns[:, TAKE] >= 0).nonzero()[0]
            index = self.columns[at, TAKE]
            table._widen(int(index[index.argmax()]) + 1)
            table.ids[self.rows[at], index] = fresh
        for row, want in zip(self.rows.tolist(), self.wants, strict=True):
            table.held[row] = want
        table._start_slots(self.rows, self.columns)
