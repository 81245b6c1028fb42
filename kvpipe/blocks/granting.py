"""Granting a step its blocks: for every request and group of the step, or for none.

A step drops blocks that are no longer needed, takes new ones, and copies the block that it is about
to write into where another request still reads it. Requests that only decode go through arrays.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.checks import Ids
from kvpipe.blocks.decode import UNTIL
from kvpipe.blocks.errors import BlockError, OutOfBlocks
from kvpipe.blocks.pool import BlockPool
from kvpipe.blocks.request import BlockCopy, LiveRequest
from kvpipe.blocks.scratch import StepScratch
from kvpipe.blocks.table import Change, GroupTable, SteadyStep
from kvpipe.specs.base import RequestLimits


class Move(NamedTuple):
    """One request in a step: tokens stored before it, tokens it brings, room for draft tokens.
    is_chunk: the tokens are sure, and many: scratch may take what does not survive the step."""

    live: LiveRequest
    computed: int
    new: int
    lookahead: int = 0
    is_chunk: bool = False


class Granter:
    """run_until [R]: tokens up to which a row's decode steps need nothing new."""

    def __init__(
        self,
        pool: BlockPool,
        tables: list[GroupTable],
        limits: RequestLimits,
        num_rows: int,
        scratch: StepScratch,
    ) -> None:
        self.pool, self.tables, self.limits, self.scratch = pool, tables, limits, scratch
        self.run_until = np.zeros(num_rows, np.int64)
        # Rows that hold exactly what their last decode step wanted.
        self._steady = np.zeros(num_rows, np.bool_)
        # The same memory, for one row at a time.
        self.until_of, self._steady_of = self.run_until.data, self._steady.data

    def look_anew(self, row: int) -> None:
        """What the row holds is not what a decode step left: ask the specs at its next step."""
        self.until_of[row], self._steady_of[row] = 0, False

    # --- one by one ----------------------------------------------------------------------------
    def grant(self, moves: Sequence[Move]) -> tuple[BlockCopy, ...]:
        """All blocks for all moves, or OutOfBlocks; the copies to make before the step writes."""
        if len(moves) == 1 and not moves[0].live.forked and not self.scratch.enabled:
            return self._grant_alone(moves[0], self._changes(moves[0], {}))
        copied: dict[int, int] = {}  # references that copies of this very step take away
        plans = [(move.live, self._changes(move, copied)) for move in moves]
        sizes = [sum(c[g].num_new for _, c in plans) for g in range(len(self.tables))]
        aside = self.scratch.slots_for([changes for _, changes in plans])
        if aside:
            sizes[0] += aside  # the step's own, whichever group needs most
        dropped = [
            table.blocks(live.row, changes[g].drop)
            for live, changes in plans
            for g, table in enumerate(self.tables)
            if len(changes[g].drop)
        ]
        who = f"{len(moves)} requests" if len(moves) > 1 else f"request {moves[0].live.name!r}"
        self.refuse_shortage(who, sizes, dropped)
        for blocks in dropped:
            self.pool.free(blocks)
        fresh = self.pool.allocate(sum(sizes))
        copies: list[BlockCopy] = []
        self.scratch.slots += fresh[:aside].tolist()
        used = aside
        for live, changes in plans:
            live.forked, live.drafted = False, 0
            if self.scratch.enabled:
                self.scratch.granted.add(live.row)
            for g, change in enumerate(changes):
                copies += self._enter(g, live.row, change, fresh[used : used + change.num_new])
                used += change.num_new
        return tuple(copies)

    def _grant_alone(self, move: Move, changes: Sequence[Change]) -> tuple[BlockCopy, ...]:
        """The same of one request that shares no block it writes into."""
        live, pool = move.live, self.pool
        row = live.row
        sizes = [len(change.take) for change in changes]
        dropped = [
            table.blocks(row, change.drop)
            for table, change in zip(self.tables, changes, strict=True)
            if len(change.drop)
        ]
        if sum(sizes) > pool.num_free:
            self.refuse_shortage(f"request {live.name!r}", sizes, dropped)
        for blocks in dropped:
            pool.free(blocks)
        fresh, used = pool.allocate(sum(sizes)), 0
        live.drafted = 0
        for table, change, size in zip(self.tables, changes, sizes, strict=True):
            if len(change.drop):
                table.put(row, change.drop, table.absent)
            if size:
                table.put(row, change.take, fresh[used : used + size])
            table.held[row] = change.want
            used += size
        return ()

    def refuse_shortage(self, who: str, sizes: Sequence[int], dropped: Sequence[Ids] = ()) -> None:
        """OutOfBlocks naming the first group whose blocks (sizes[g]) the pool cannot give, after
        the dropped ones have come back."""
        needed, free = sum(sizes), self.pool.num_free
        if needed <= free:
            return
        if dropped:
            free += self.pool.reclaimable(np.concatenate(dropped))
        if needed > free:
            group = next(g for g, total in enumerate(accumulate(sizes)) if total > free)
            kind = self.tables[group].spec.kind
            raise OutOfBlocks(needed, free, group, f"{who}: group {group} ({kind}) ran short: ")

    def refuse_length(self, request: Hashable, num_tokens: int) -> None:
        if num_tokens > self.limits.max_model_len:
            raise BlockError(
                f"request {request!r}: {num_tokens} tokens are more than max_model_len "
                f"{self.limits.max_model_len}"
            )

    def refuse_undecodable(self, request: Hashable, computed: int) -> None:
        if not computed:
            raise BlockError(f"request {request!r} has no tokens yet: allocate its prompt first")
        self.refuse_length(request, computed + 1)

    def start_run(self, live: LiveRequest, stored: int) -> None:
        """Prepare the decode steps from `stored` tokens on, once what they hold is granted."""
        row, limits = live.row, live.limits
        until = [table.start_run(row, stored, limits) for table in self.tables]
        self.until_of[row] = min([*until, self.limits.max_model_len])
        self._steady_of[row] = limits is self.limits and not live.forked

    def _changes(self, move: Move, copied: dict[int, int]) -> list[Change]:
        changes = []
        for g, table in enumerate(self.tables):
            change = table.change(
                move.live.row, move.computed, move.new, move.lookahead, move.live.limits
            )
            if move.live.forked:
                change = self._with_copy(table, change, move, copied)
            if move.is_chunk and self.scratch.enabled:
                step = (move.computed, move.new)
                change = self.scratch.divided(g, move.live.row, change, step, move.live.limits)
            changes.append(change)
        return changes

    def _with_copy(
        self, table: GroupTable, change: Change, move: Move, copied: dict[int, int]
    ) -> Change:
        """The change, with a copy of the block that is written if another request reads it."""
        row = move.live.row
        index = table.written_index(row, move.computed, move.new, move.live.limits)
        if index is None:
            return change
        block = int(table.ids[row, index])
        if self.pool.references([block])[0] - copied.get(block, 0) < 2:
            return change
        copied[block] = copied.get(block, 0) + 1
        return change._replace(copy=(index,))

    def _enter(self, group: int, row: int, change: Change, fresh: Ids) -> list[BlockCopy]:
        """Write one change of one row into its table; the copies that it needs."""
        table = self.tables[group]
        if len(change.drop):
            table.put(row, change.drop, table.absent)
        table.held[row] = change.want
        table.put(row, change.take, fresh[: len(change.take)])
        if change.aside or change.moved:
            self.scratch.enter(group, row, change)
        if not change.copy:
            return []
        old = table.blocks(row, change.copy)
        new = fresh[len(change.take) :]
        self.pool.free(old)
        table.put(row, change.copy, new)
        return [BlockCopy(group, *pair) for pair in zip(old.tolist(), new.tolist(), strict=True)]

    # --- one, and a few, without numpy ---------------------------------------------------------
    def grant_one(self, row: int, stored: int) -> bool:
        """One decode token for a row that only decodes. False: nothing was done."""
        until = self.limits.max_model_len
        if not self._steady_of[row] or stored >= until:
            return False
        needed = 0
        steps = [table.steady_plan.step(stored) for table in self.tables]
        for step in steps:
            if not step.simple:
                return False
            needed += step.take >= 0
        if needed > self.pool.num_free:
            return False
        for table, step in zip(self.tables, steps, strict=True):
            if step.drop >= 0 and (block := table.drop_at(row, step.drop)) > 0:
                self.pool.free_one(block)
        for table, step in zip(self.tables, steps, strict=True):
            table.enter_step(row, step, self.pool.allocate_one() if step.take >= 0 else -1)
            if step.until < until:
                until = step.until
        self.until_of[row] = until
        return True

    def grant_few(self, rows: Sequence[int], stored: Sequence[int]) -> bool:
        """One decode token for rows that only decode. False: nothing was done, grant one by one."""
        longest, steady = self.limits.max_model_len, self._steady_of
        for row in rows:
            if not steady[row]:
                return False
        if max(stored) >= longest:
            return False
        steps, needed = [], 0
        for table in self.tables:
            step_at = table.steady_plan.step
            for row, tokens in zip(rows, stored, strict=True):
                step = step_at(tokens)
                if not step.simple:
                    return False
                needed += step.take >= 0
                steps.append((table, row, step))
        if needed > self.pool.num_free:
            return False
        for table, row, step in steps:
            if step.drop >= 0 and (block := table.drop_at(row, step.drop)) > 0:
                self.pool.free_one(block)
        for row in rows:
            self.until_of[row] = longest
        for table, row, step in steps:
            table.enter_step(row, step, self.pool.allocate_one() if step.take >= 0 else -1)
            if step.until < self.until_of[row]:
                self.until_of[row] = step.until
        return True

    # --- all at once -------------------------------------------------------------------------
    def grant_steady(self, rows: Ids, computed: npt.NDArray[np.int64]) -> bool:
        """One decode token for rows that only decode. False: nothing was done, grant one by one."""
        stored = computed.tolist()
        if not self._steady[rows].all() or max(stored) >= self.limits.max_model_len:
            return False
        steps = [
            SteadyStep(table, rows, *table.decode_plan(self.limits).at(stored))
            for table in self.tables
        ]
        sizes = [step.num_new for step in steps]
        if sum(sizes) > self.pool.num_free or not all(step.is_simple for step in steps):
            return False
        for step in steps:
            self._free_each(step.dropped())
        fresh, used = self.pool.allocate(sum(sizes)), 0
        for step, size in zip(steps, sizes, strict=True):
            step.enter(fresh[used : used + size])
            used += size
        until = np.full(len(rows), self.limits.max_model_len)
        for step in steps:
            np.minimum(until, step.columns[:, UNTIL], out=until)
        self.run_until[rows] = until
        return True

    def _free_each(self, blocks: Ids) -> None:
        """Free blocks of several rows, among which a shared one is named more than once."""
        if len(set(blocks.tolist())) < len(blocks):
            for i in range(len(blocks)):
                self.pool.free(blocks[i : i + 1])
        elif len(blocks):
            self.pool.free(blocks)
