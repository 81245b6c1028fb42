"""The scratch of one step: slots of the pool that no request owns, given back when it has run.

A prefill chunk takes blocks for what survives it only. A block that it pushes out of the window
becomes the block of a token that stays: its content is moved to a scratch page first. So each layer
of a group, in turn and for all requests of the step at once,

    1. copies its page of every moved block to that block's scratch page  (`moves`),
    2. writes the new tokens                                              (`slots`),
    3. lets its queries read                                              (`table`),

and is then done with the scratch slots: the next layer fills them with its own. Entries and slots
are counted in the units of `GroupScratch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.pool import BlockPool
from kvpipe.blocks.table import Change, GroupTable
from kvpipe.cache.scratch import GroupScratch
from kvpipe.specs.base import RequestLimits, cdiv
from kvpipe.specs.runs import has, indices


@dataclass(frozen=True, slots=True)
class StepArray:
    """Entries of a block table, or slots of tokens, of a step that uses scratch; -1: none. aside:
    which of them lie in scratch. per_unit: 1 of entries; tokens a block, of slots."""

    values: npt.NDArray[np.int64]
    aside: npt.NDArray[np.bool_]
    per_unit: int = 1

    def of_layer(self, shift: int) -> npt.NDArray[np.int64]:
        """The same, as one layer counts; shift: `GroupScratch.shift` of it."""
        return self.values - self.aside * (shift * self.per_unit)


class StepScratch:
    """groups: one a group of the plan, None where a group's layers use none."""

    def __init__(
        self,
        pool: BlockPool,
        tables: Sequence[GroupTable],
        groups: Sequence[GroupScratch | None],
    ) -> None:
        self.pool, self.tables = pool, tables
        self.groups = tuple(groups) or (None,) * len(tables)
        self.enabled = any(self.groups)
        self.slots: list[int] = []
        self.granted: set[int] = set()  # rows that this step brings tokens to
        self._clear()

    def _clear(self) -> None:
        self.granted.clear()
        # A group: (row, index) -> number of its page in this step; (row, block, its page) of moved
        # blocks; slots in scratch, and where among the step's slots they belong.
        self._pages: list[dict[tuple[int, int], int]] = [{} for _ in self.groups]
        self._moves: list[list[tuple[int, int, int]]] = [[] for _ in self.groups]
        self._patches: list[list[tuple[int, int]]] = [[] for _ in self.groups]
        self._used = [0] * len(self.groups)

    def end_step(self) -> None:
        """The step has run: nobody reads its scratch any more."""
        if self.slots:
            self.pool.free(self.slots)
            self.slots = []
        if self.enabled:
            self._clear()

    # --- granting ------------------------------------------------------------------------------
    def divided(
        self, group: int, row: int, change: Change, step: tuple[int, int], limits: RequestLimits
    ) -> Change:
        """What a prefill step (tokens stored, new ones) really takes of a group's blocks."""
        if self.groups[group] is None or row in self.granted:
            return change  # a request is granted once a step: a second grant is as without scratch
        table, stop = self.tables[group], sum(step)
        stays = table.spec.survives(*step, limits)
        aside = [i for i in change.take if i < stop // table.span and not has(stays, i)]
        fresh = [i for i in change.take if i >= stop // table.span or has(stays, i)]
        pushed_out = self._pushed_out(table, row, change, stays, stop // table.span)
        pairs = tuple(zip(pushed_out, fresh, strict=False))
        return change._replace(take=fresh[len(pairs) :], aside=aside, moved=pairs)

    def _pushed_out(
        self, table: GroupTable, row: int, change: Change, stays: tuple[range, ...], stop: int
    ) -> list[int]:
        """Indices whose blocks this step alone still reads, and nobody else holds."""
        held = [
            i
            for i in indices(table.held[row])
            if i < stop and has(change.want, i) and not has(stays, i) and i not in change.copy
        ]
        blocks = table.ids[row, held] if held else np.empty(0, np.int32)
        alone = (blocks > 0) & (self.pool.references(np.maximum(blocks, 0)) == 1)
        return [i for i, mine in zip(held, alone.tolist(), strict=True) if mine]

    def slots_for(self, changes: Sequence[Sequence[Change]]) -> int:
        """Slots to be had beside those that the step has. changes: of each request, one a group."""
        if not self.enabled:
            return 0
        needed = 0
        for g, scratch in enumerate(self.groups):
            if scratch is not None:
                pages = sum(len(each[g].aside) + len(each[g].moved) for each in changes)
                needed = max(needed, cdiv(self._used[g] + pages, scratch.pages_per_slot))
        return max(0, needed - len(self.slots))

    def enter(self, group: int, row: int, change: Change) -> None:
        """Give one change of one row its scratch pages; its moved blocks change their index."""
        table, pages = self.tables[group], self._pages[group]
        table.put(row, change.aside, table.absent)
        for index in change.aside:
            pages[row, index] = self._next_page(group)
        for old, new in change.moved:
            block = table.drop_at(row, old)
            table.put(row, (new,), block)
            pages[row, old] = self._next_page(group)
            self._moves[group].append((row, block, pages[row, old]))

    def _next_page(self, group: int) -> int:
        self._used[group] += 1
        return self._used[group] - 1

    def forget(self, row: int) -> None:
        """The row's request is gone; its pages are unused until the step's end."""
        if not self.enabled:
            return
        for pages, moves in zip(self._pages, self._moves, strict=True):
            for key in [key for key in pages if key[0] == row]:
                del pages[key]
            moves[:] = [move for move in moves if move[0] != row]

    def note_written(self, group: int, row: int, written: range, first: int) -> None:
        """written: positions of the row that the step fills; first: of their slots among all."""
        pages, span = self._pages[group], self.tables[group].span
        if not pages or not written:
            return
        for index in range(written.start // span, (written.stop - 1) // span + 1):
            if (page := pages.get((row, index))) is None:
                continue
            at = range(max(written.start, index * span), min(written.stop, (index + 1) * span))
            start = self._entry(group, page) * span - index * span
            self._patches[group] += [(first + i - written.start, start + i) for i in at]

    # --- what layers read ------------------------------------------------------------------------
    def used_by(self, group: int) -> bool:
        """Whether this step keeps anything of the group in scratch."""
        return bool(self._used[group])

    def _entry(self, group: int, page: int) -> int:
        """Of a scratch page, before a layer's shift."""
        scratch = self._of(group)
        slot, place = divmod(page, scratch.pages_per_slot)
        return self.slots[slot] * scratch.slot_units + place * scratch.pitch_units

    def _of(self, group: int) -> GroupScratch:
        scratch = self.groups[group]
        assert scratch is not None, f"group {group} uses no scratch"
        return scratch

    def table(self, group: int, rows: Sequence[int]) -> StepArray:
        """[R, W] entries of the rows' block tables."""
        ids = self.tables[group].ids[list(rows)].astype(np.int64)
        place_of, pages = {row: i for i, row in enumerate(rows)}, self._pages[group]
        mine = [
            (place_of[row], index, page) for (row, index), page in pages.items() if row in place_of
        ]
        width = max([ids.shape[1], *(index + 1 for _, index, _ in mine)])
        values = np.full((len(ids), width), -1, np.int64)
        values[:, : ids.shape[1]] = np.where(ids > 0, ids * self._of(group).slot_units, -1)
        aside = np.zeros(values.shape, np.bool_)
        for row, index, page in mine:
            values[row, index], aside[row, index] = self._entry(group, page), True
        return StepArray(values, aside)

    def slots_of(self, group: int, own: npt.NDArray[np.int64]) -> StepArray:
        """[T] slots of the step's tokens; own: as the group's blocks have them, -1 in scratch."""
        span = self.tables[group].span
        block, offset = np.divmod(own, span)
        values = np.where(own < 0, -1, block * self._of(group).slot_units * span + offset)
        aside = np.zeros(len(own), np.bool_)
        if self._patches[group]:
            at, slots = np.array(self._patches[group]).T
            values[at], aside[at] = slots, True
        return StepArray(values, aside, span)

    def moves(self, group: int) -> tuple[npt.NDArray[np.int64], StepArray]:
        """[n] entries of the blocks whose pages are copied, and of where to, before a layer
        writes."""
        units = self._of(group).slot_units
        blocks = np.array([block * units for _, block, _ in self._moves[group]], np.int64)
        pages = [self._entry(group, page) for *_, page in self._moves[group]]
        return blocks, StepArray(np.array(pages, np.int64), np.ones(len(pages), np.bool_))

    def copies(self, group: int, shift: int) -> list[tuple[int, int]]:
        """The same of one layer, as `Backend.copy_blocks` takes them: (entry, its copy's)."""
        blocks, pages = self.moves(group)
        return list(zip(blocks.tolist(), pages.of_layer(shift).tolist(), strict=True))
