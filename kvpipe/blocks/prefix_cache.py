"""Prefixes that several requests share: the longest hit, and what a step made findable.

Groups may differ in kind and block size. A prefix can be served only where every group can serve
it; a block is found by the chain's key at its end and its group.

Keys and values that a step computes are a hit in the same step: a layer writes all rows before it
attends. A state is not, until the next step: the scan that reads it begins while the one that
writes it is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import cast

import numpy as np

from kvpipe.blocks.group_hits import GroupHit, group_hits
from kvpipe.blocks.hashing import Chain, Key
from kvpipe.blocks.pool import BlockPool
from kvpipe.blocks.request import LiveRequest, PrefixStats
from kvpipe.blocks.table import GroupTable
from kvpipe.specs.answers import held_at
from kvpipe.specs.runs import below, indices

_FIRST = 32  # blocks of a group
_Found = Mapping[int, Sequence[int | None]]  # group -> block of each index, None: not cached


class PrefixCache:
    """enabled: asked for, and possible. granule: tokens between two keys of a chain. unwritten:
    blocks of states that this very step computes; `begin_step` empties it."""

    def __init__(self, pool: BlockPool, tables: Sequence[GroupTable], wanted: bool) -> None:
        self.pool, self.tables = pool, tables
        possible = bool(tables) and all(table.caches_prefixes for table in tables)
        self.enabled = wanted and possible
        self.granule = gcd(*(table.span for table in tables)) or 1
        self._queried = self._hit = 0
        self.unwritten: set[int] = set()

    def stats(self) -> PrefixStats:
        return PrefixStats(queried_tokens=self._queried, hit_tokens=self._hit)

    def claim(self, live: LiveRequest, chain: Chain) -> int:
        """Hold the blocks of the longest prefix that every group can serve, and that leaves a token
        to compute. Returns its length in tokens."""
        if not chain.num_tokens:
            return 0
        length, found = self._longest(chain, chain.num_tokens - 1)
        if length:
            self._hold(live, found, length)
        self._queried += chain.num_tokens
        self._hit += length
        return length

    def by_group(self, chain: Chain) -> list[GroupHit]:
        """What each group has of a request's prefix. Every block is looked up in every group, as a
        hit alone need not be: for who asks why."""
        most = chain.num_tokens - 1
        cached = [
            [block is not None for block in self._find(chain, g, range(most // table.span))]
            for g, table in enumerate(self.tables)
        ]

        def served(group: int, length: int) -> int:
            table = self.tables[group]
            return table.spec.hit_length(cached[group][: length // table.span]) * table.ranks

        return group_hits(len(self.tables), most, served)

    def _longest(self, chain: Chain, length: int) -> tuple[int, _Found]:
        """Each group lowers the length to what it can serve, until none does. Most prompts are new:
        _FIRST blocks are looked up, then four times as many, and so on; what was not yet is taken
        for cached, which can only make the length too long."""
        found: dict[int, list[int | None]] = {g: [] for g in range(len(self.tables))}
        most, settled = _FIRST, False
        while not settled:
            settled = True
            for g, table in enumerate(self.tables):
                num = length // table.span
                blocks = found[g]
                if len(blocks) < min(num, most):
                    blocks += self._find(chain, g, range(len(blocks), min(num, most)))
                served = table.spec.hit_length(_cached(blocks, num)) * table.ranks
                if served < length:
                    length, settled = served, False
                elif len(blocks) < num:
                    most, settled = 4 * most, False
        return length, found

    def _find(self, chain: Chain, group: int, at: range) -> list[int | None]:
        """The block that holds each of those indices of a chain in a group, None where none may be
        read by this step."""
        found = self.pool.lookup(self._keys(chain, group, at))
        if self.unwritten and self.tables[group].is_state:
            return [None if block in self.unwritten else block for block in found]
        return found

    def _hold(self, live: LiveRequest, found: _Found, length: int) -> None:
        rows = []
        for g, table in enumerate(self.tables):
            want = held_at(table.spec, length, 0, live.limits)
            held = below(want, length // table.span)
            at, blocks = _present(indices(held), found[g])
            rows.append((table, held, at, np.array(blocks, np.intp)))
        each = [blocks for *_, blocks in rows]
        self.pool.share(each[0] if len(each) == 1 else np.concatenate(each))
        for table, held, at, ids in rows:
            table.put(live.row, at, ids)
            table.held[live.row] = held

    def complete(self, live: LiveRequest, computed: int, new: int) -> None:
        """Make the blocks findable that a step of `new` tokens after `computed` completed."""
        chain = live.chain
        assert chain is not None
        if live.pending:
            chain.extend(live.pending)
            live.pending.clear()
        for g, table in enumerate(self.tables):
            written = table.spec.written(computed, new, live.limits)
            # A block is complete when its last position is written.
            first = max(computed // table.span, -(-(written.start + 1) // table.span) - 1)
            completed = range(first, (computed + new) // table.span)
            if completed:
                self._register(live.row, chain, g, completed)

    def _register(self, row: int, chain: Chain, group: int, completed: range) -> None:
        table = self.tables[group]
        blocks, keys = table.blocks(row, completed), self._keys(chain, group, completed)
        if np.minimum.reduce(blocks) < 1:
            here = np.flatnonzero(blocks > 0)
            blocks, keys = blocks[here], [keys[i] for i in here.tolist()]
        self.pool.register(blocks, keys)
        if table.is_state:
            self.unwritten.update(blocks.tolist())

    def complete_at(self, live: LiveRequest, stored: int) -> None:
        """The same after a decode step, which brought the `stored`-th token."""
        chain = live.chain
        assert chain is not None
        chain.extend(live.pending)
        live.pending.clear()
        granule = stored // self.granule - 1
        for g, table in enumerate(self.tables):
            if stored % table.span:
                continue
            block = table.id_at[live.row, stored // table.span - 1]
            if block > 0:
                (key,) = chain.keys_at(range(granule, granule + 1), g)
                self.pool.register_one(block, key)
                if table.is_state:
                    self.unwritten.add(block)

    def _keys(self, chain: Chain, group: int, at: range) -> Sequence[Key]:
        """The keys of the group's blocks at those indices."""
        ratio = self.tables[group].span // self.granule
        return chain.keys_at(range((at.start + 1) * ratio - 1, at.stop * ratio, ratio), group)


def _cached(found: Sequence[int | None], num: int) -> list[bool]:
    """Which of the first num blocks are cached; those not looked up yet are taken for cached."""
    if None not in found:  # a hit, most often: nothing is looked at block by block
        return [True] * num
    known = [block is not None for block in found[:num]]
    return known + [True] * (num - len(known))


def _present(at: Sequence[int], found: Sequence[int | None]) -> tuple[Sequence[int], list[int]]:
    """Those indices at which there is a block, and the blocks."""
    if isinstance(at, range):
        blocks = found[at.start : at.stop]
        if None not in blocks:
            return at, cast("list[int]", blocks)
    pairs = [(i, block) for i in at if (block := found[i]) is not None]
    return [i for i, _ in pairs], [block for _, block in pairs]
