"""One decode step of a batch: a token more of each request, for all or for none.

Most steps only move a slot on by one: what else a request needs, and until which length it needs
nothing new, was worked out when it last did (`Granter`). A batch goes through arrays; a few
requests go one by one, since numpy takes longer to begin than they take altogether.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.errors import BlockError
from kvpipe.blocks.granting import Granter, Move
from kvpipe.blocks.hashing import MAX_TOKEN_ID, token_bytes
from kvpipe.blocks.prefix_cache import PrefixCache
from kvpipe.blocks.request import BlockCopy
from kvpipe.blocks.seats import Seats
from kvpipe.blocks.step import GroupSlots
from kvpipe.blocks.table import GroupTable

FEW = 8  # requests: up to here one by one is the faster way (benchmarks/BLOCKS.md)


class Decoding:
    """groups: each group's table, and where its slots go."""

    def __init__(
        self,
        seats: Seats,
        granter: Granter,
        prefixes: PrefixCache,
        groups: list[tuple[GroupTable, GroupSlots]],
        few: int = FEW,
    ) -> None:
        self.seats, self.granter, self.prefixes, self.groups = seats, granter, prefixes, groups
        self.few = few

    def step(
        self, requests: Sequence[Hashable], token_ids: Sequence[int] | None
    ) -> tuple[BlockCopy, ...]:
        rows = self.seats.rows(requests)
        if token_ids is not None and len(token_ids) != len(rows):
            raise BlockError(f"{len(rows)} requests but {len(token_ids)} token ids")
        if self.prefixes.enabled:
            token_ids = self._known(rows, token_ids)
        if len(rows) == 1 <= self.few:
            return self._one(rows[0], token_ids)
        return self._few(rows, token_ids) if len(rows) <= self.few else self._many(rows, token_ids)

    # --- one alone -------------------------------------------------------------------------------
    def _one(self, row: int, token_ids: Sequence[int] | None) -> tuple[BlockCopy, ...]:
        stored_of = self.seats.stored_of
        stored: int = stored_of[row]
        copies: tuple[BlockCopy, ...] = ()
        if stored >= self.granter.until_of[row] and not self.granter.grant_one(row, stored):
            copies = self._grant([row], [stored])
        for table, slots in self.groups:
            slot = table.next_slot_of[row]
            slots.push_decode(slot)
            table.next_slot_of[row] = slot + table.advance_of[row]
        stored_of[row] = stored = stored + 1
        if token_ids is not None and self.prefixes.enabled:
            self.seats.pending[row].append(token_ids[0])
            if not stored % self.prefixes.granule:
                self._complete(row)
        return copies

    # --- one by one ------------------------------------------------------------------------------
    def _few(self, rows: list[int], token_ids: Sequence[int] | None) -> tuple[BlockCopy, ...]:
        stored_of, until_of = self.seats.stored_of, self.granter.until_of
        due = [row for row in rows if stored_of[row] >= until_of[row]]
        copies = self._grant(due, [stored_of[row] for row in due]) if due else ()
        for table, slots in self.groups:
            next_slot_of, advance_of = table.next_slot_of, table.advance_of
            for row in rows:
                slot = next_slot_of[row]
                slots.push_decode(slot)
                next_slot_of[row] = slot + advance_of[row]
        for row in rows:
            stored_of[row] += 1
        if token_ids is not None and self.prefixes.enabled:
            self._note_few(rows, token_ids)
        return copies

    def _note_few(self, rows: list[int], token_ids: Sequence[int]) -> None:
        stored_of, pending, granule = (
            self.seats.stored_of,
            self.seats.pending,
            self.prefixes.granule,
        )
        for row, token in zip(rows, token_ids, strict=True):
            pending[row].append(token)
            if not stored_of[row] % granule:
                self._complete(row)

    # --- all at once -----------------------------------------------------------------------------
    def _many(self, given: list[int], token_ids: Sequence[int] | None) -> tuple[BlockCopy, ...]:
        rows = self.seats.as_array(given)
        computed = self.seats.num_tokens[rows]
        due = (computed >= self.granter.run_until[rows]).nonzero()[0]
        copies: tuple[BlockCopy, ...] = ()
        if len(due) > self.few and self.granter.grant_steady(rows[due], computed[due]):
            pass
        elif len(due):
            copies = self._grant(rows[due].tolist(), computed[due].tolist())
        computed += 1
        self.seats.num_tokens[rows] = computed
        for table, slots in self.groups:
            now = table.next_slot[rows]
            table.next_slot[rows] = now + table.advance[rows]
            slots.extend_decode(now)
        if token_ids is not None and self.prefixes.enabled:
            self._note_many(given, computed, token_ids)
        return copies

    def _note_many(
        self, rows: list[int], stored: npt.NDArray[np.int64], token_ids: Sequence[int]
    ) -> None:
        pending = self.seats.pending
        for row, token in zip(rows, token_ids, strict=True):
            pending[row].append(token)
        for i in (stored % self.prefixes.granule == 0).nonzero()[0].tolist():
            self._complete(rows[i])

    # --- parts -----------------------------------------------------------------------------------
    def grant(self, rows: list[int], stored: list[int]) -> tuple[BlockCopy, ...]:
        """What those rows need for one more token each, beside others that need nothing."""
        granter = self.granter
        if len(rows) == 1 and granter.grant_one(rows[0], stored[0]):
            return ()
        if len(rows) > self.few and granter.grant_steady(
            np.array(rows, np.intp), np.array(stored, np.int64)
        ):
            return ()
        return self._grant(rows, stored)

    def _grant(self, rows: list[int], stored: list[int]) -> tuple[BlockCopy, ...]:
        """Whatever changes for rows at which something does."""
        if self.granter.grant_few(rows, stored):
            return ()
        moves = [
            Move(self.seats.at(row), tokens, 1) for row, tokens in zip(rows, stored, strict=True)
        ]
        for move in moves:
            self.granter.refuse_undecodable(move.live.name, move.computed)
        copies = self.granter.grant(moves)
        for move in moves:
            self.granter.start_run(move.live, move.computed)
        return copies

    def _complete(self, row: int) -> None:
        live = self.seats.at(row)
        if live.chain is not None:
            self.prefixes.complete_at(live, self.seats.stored_of[row])

    def _known(self, rows: list[int], token_ids: Sequence[int] | None) -> list[int] | None:
        """The ids as a list; BlockError where one is wrong, or missing and needed."""
        if token_ids is not None:
            plain = token_ids if type(token_ids) is list else np.asarray(token_ids).tolist()
            if len(plain) != 1 or type(plain[0]) is not int or not 0 <= plain[0] <= MAX_TOKEN_ID:
                token_bytes(plain)
            return plain
        for row in rows:
            if (live := self.seats.at(row)).chain is not None:
                raise BlockError(
                    f"request {live.name!r} is cached by prefix: append needs its token id"
                )
        return None
