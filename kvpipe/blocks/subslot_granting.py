"""Granting a step its blocks where a group lies in sub-slots: each group asks a pool of its own.

What `Granter` does in one call to the pool is done group by group here; whether all of it can be
had is known before anything moves (`SubSlotPool.slots_to_take`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.checks import Ids
from kvpipe.blocks.errors import OutOfBlocks
from kvpipe.blocks.granting import Granter, Move
from kvpipe.blocks.pool import BlockPool
from kvpipe.blocks.request import BlockCopy
from kvpipe.blocks.scratch import StepScratch
from kvpipe.blocks.subslots import SubSlotPool
from kvpipe.blocks.table import Change, GroupTable
from kvpipe.cache.plan import KVCacheConfig
from kvpipe.specs.base import RequestLimits

GroupPool = BlockPool | SubSlotPool


class SubSlotGranter(Granter):
    """pools: one a group, of which those without sub-slots are the common one."""

    def __init__(
        self,
        pools: Sequence[GroupPool],
        tables: list[GroupTable],
        limits: RequestLimits,
        num_rows: int,
        scratch: StepScratch,
    ) -> None:
        super().__init__(scratch.pool, tables, limits, num_rows, scratch)
        self.common, self.pools = scratch.pool, tuple(pools)
        del self.pool  # ids of one group mean nothing to another's: no step may ask it by mistake

    # --- one by one ----------------------------------------------------------------------------
    def grant(self, moves: Sequence[Move]) -> tuple[BlockCopy, ...]:
        copied: dict[tuple[int, int], int] = {}
        plans = [(move.live, self._all_changes(move, copied)) for move in moves]
        groups = range(len(self.tables))
        sizes = [sum(changes[g].num_new for _, changes in plans) for g in groups]
        dropped = [
            np.concatenate(
                [self.tables[g].blocks(live.row, changes[g].drop) for live, changes in plans]
            )
            for g in groups
        ]
        who = f"{len(moves)} requests" if len(moves) > 1 else f"request {moves[0].live.name!r}"
        self._refuse_short(who, sizes, dropped)
        for pool, blocks in zip(self.pools, dropped, strict=True):
            self._give_back(pool, blocks)
        fresh = [pool.allocate(size) for pool, size in zip(self.pools, sizes, strict=True)]
        used = [0] * len(self.tables)
        copies: list[BlockCopy] = []
        for live, changes in plans:
            live.forked, live.drafted = False, 0
            for g, change in enumerate(changes):
                mine = fresh[g][used[g] : used[g] + change.num_new]
                copies += self._put(g, live.row, change, mine)
                used[g] += change.num_new
        return tuple(copies)

    def _all_changes(self, move: Move, copied: dict[tuple[int, int], int]) -> list[Change]:
        """copied: references that copies of this very step take away, by group and block."""
        live = move.live
        changes = []
        for g, table in enumerate(self.tables):
            change = table.change(live.row, move.computed, move.new, move.lookahead, live.limits)
            if live.forked:
                change = self._copied(g, change, move, copied)
            changes.append(change)
        return changes

    def _copied(
        self, group: int, change: Change, move: Move, copied: dict[tuple[int, int], int]
    ) -> Change:
        """The change, with a copy of the block that is written if another request reads it."""
        table, row = self.tables[group], move.live.row
        index = table.written_index(row, move.computed, move.new, move.live.limits)
        if index is None:
            return change
        block = int(table.ids[row, index])
        gone = copied.get((group, block), 0)
        if self.pools[group].references([block])[0] - gone < 2:
            return change
        copied[group, block] = gone + 1
        return change._replace(copy=(index,))

    @staticmethod
    def _give_back(pool: GroupPool, blocks: Ids) -> None:
        """Blocks of several rows, among which a shared one is named more than once."""
        if len(set(blocks.tolist())) < len(blocks):
            for i in range(len(blocks)):
                pool.free(blocks[i : i + 1])
        elif len(blocks):
            pool.free(blocks)

    def _put(self, group: int, row: int, change: Change, fresh: Ids) -> list[BlockCopy]:
        """Write one change of one row into its table; the copies that it needs."""
        table = self.tables[group]
        if len(change.drop):
            table.put(row, change.drop, table.absent)
        table.held[row] = change.want
        table.put(row, change.take, fresh[: len(change.take)])
        if not change.copy:
            return []
        old, new = table.blocks(row, change.copy), fresh[len(change.take) :]
        self.pools[group].free(old)
        table.put(row, change.copy, new)
        return [BlockCopy(group, *pair) for pair in zip(old.tolist(), new.tolist(), strict=True)]

    # --- whether the pool can give them ----------------------------------------------------------
    def refuse_shortage(self, who: str, sizes: Sequence[int], dropped: Sequence[Ids] = ()) -> None:
        self._refuse_short(who, sizes, dropped or [np.empty(0, np.intp)] * len(sizes))

    def _refuse_short(self, who: str, sizes: Sequence[int], dropped: Sequence[Ids]) -> None:
        """OutOfBlocks naming the first group whose blocks the pool cannot give, in blocks of the
        pool. dropped: of each group, what comes back before."""
        needed = [
            pool.slots_to_take(size, gone) if isinstance(pool, SubSlotPool) else size
            for pool, size, gone in zip(self.pools, sizes, dropped, strict=True)
        ]
        free = self.common.num_free
        if sum(needed) <= free:
            return
        plain = [g for g, pool in enumerate(self.pools) if pool is self.common]
        if plain:
            free += self.common.reclaimable(np.concatenate([dropped[g] for g in plain]))
        if sum(needed) > free:
            group = next(g for g, total in enumerate(accumulate(needed)) if total > free)
            kind = self.tables[group].spec.kind
            raise OutOfBlocks(
                sum(needed), free, group, f"{who}: group {group} ({kind}) ran short: "
            )

    # --- decode steps: one by one, whatever their number ---------------------------------------
    def grant_one(self, row: int, stored: int) -> bool:
        return False

    def grant_few(self, rows: Sequence[int], stored: Sequence[int]) -> bool:
        return False

    def grant_steady(self, rows: Ids, computed: npt.NDArray[np.int64]) -> bool:
        return False


def group_pools(pool: BlockPool, config: KVCacheConfig) -> list[GroupPool]:
    """What each group's blocks come from: the pool itself, or its sub-slots in it."""
    subs = [group.blocks_per_slot for group in config.groups]
    return [pool if k == 1 else SubSlotPool(pool, k) for k in subs]


def granter_of(
    pools: Sequence[GroupPool],
    tables: list[GroupTable],
    limits: RequestLimits,
    num_rows: int,
    scratch: StepScratch,
) -> Granter:
    """One call to the pool a step, or one a group where any of them has a pool of its own."""
    if any(isinstance(pool, SubSlotPool) for pool in pools):
        return SubSlotGranter(pools, tables, limits, num_rows, scratch)
    return Granter(scratch.pool, tables, limits, num_rows, scratch)
