"""Speculative decoding: a step computes one sure token and k drafted ones; some are accepted.

    manager.append(batch, tokens, num_draft_tokens=k)    slots for 1 + k tokens of each request
    manager.accept(request, n, drafted[:n])              its first n drafts are stored from now on

Drafts that are not accepted by the request's next grant are rejected: their slots are written anew.
K and V of rejected tokens simply lie behind what is stored. A state cannot be taken back, so each
drafted token's state goes to a block of its own, and accepting moves blocks within the table:

    index      t    t+1  t+2  t+3          2 of 3 accepted, all in index t's tokens
    before     B0   B1   B2   B3           B0: after the sure token, Bj: after draft j
    after      B2   B1   B0   B3           the running state is at index t again

    2 of 3 accepted, the first ends index t's tokens
    after      B1   B2   B0   B3           the boundary's state stays at t, the next one runs at t+1
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from kvpipe.blocks.errors import BlockError
from kvpipe.blocks.granting import Granter, Move
from kvpipe.blocks.hashing import token_bytes
from kvpipe.blocks.prefix_cache import PrefixCache
from kvpipe.blocks.request import BlockCopy, LiveRequest
from kvpipe.blocks.seats import Seats
from kvpipe.blocks.step import GroupSlots
from kvpipe.blocks.table import GroupTable


class Drafts:
    """groups: each group's table, and where its slots go."""

    def __init__(
        self,
        seats: Seats,
        granter: Granter,
        prefixes: PrefixCache,
        groups: list[tuple[GroupTable, GroupSlots]],
    ) -> None:
        self.seats, self.granter, self.prefixes, self.groups = seats, granter, prefixes, groups

    def step(
        self, requests: Sequence[Hashable], token_ids: Sequence[int] | None, num_drafts: int
    ) -> tuple[BlockCopy, ...]:
        """Room for one token and num_drafts drafted ones of each request, for all or for none."""
        rows = self.seats.rows(requests)
        moves = [self._move(self.seats.at(row), num_drafts) for row in rows]
        tokens = self._tokens(moves, token_ids)
        copies = self.granter.grant(moves)
        for move, token in zip(moves, tokens, strict=True):
            live, computed = move.live, move.computed
            for table, slots in self.groups:
                slots.extend_decode(table.draft_slots(live, computed, num_drafts))
            self.seats.stored_of[live.row] = computed + 1
            self.granter.look_anew(live.row)
            live.drafted = move.lookahead
            if live.chain is not None:
                live.pending.append(token)
                self.prefixes.complete(live, computed, 1)
        return copies

    def accept(self, request: Hashable, num: int, token_ids: Sequence[int]) -> None:
        live = self.seats.find(request)
        if not 0 <= num <= live.drafted:
            raise BlockError(
                f"request {request!r}: {num} tokens accepted, {live.drafted} drafted since its "
                "last grant"
            )
        token_bytes(token_ids)
        if live.chain is not None and len(token_ids) != num:
            raise BlockError(f"request {request!r}: {num} accepted, {len(token_ids)} token ids")
        stored: int = self.seats.stored_of[live.row]
        live.drafted = 0
        for table, _ in self.groups:
            if table.is_state and num:
                table.rewind(live, stored, num)
        self.seats.stored_of[live.row] = stored + num
        if live.chain is not None:
            live.pending.extend(np.asarray(token_ids).tolist())
            for position in range(stored, stored + num):
                self.prefixes.complete(live, position, 1)

    # --- parts -----------------------------------------------------------------------------------
    def _move(self, live: LiveRequest, num_drafts: int) -> Move:
        computed: int = self.seats.stored_of[live.row]
        limits = self.granter.limits
        self.granter.refuse_undecodable(live.name, computed)
        if 1 + num_drafts > limits.tokens_in_flight:
            raise BlockError(
                f"request {live.name!r}: {1 + num_drafts} tokens in one step, at most "
                f"{limits.tokens_in_flight} fit (max_num_batched_tokens): draft fewer"
            )
        for g, (table, _) in enumerate(self.groups):
            if num_drafts > (room := table.draft_room(live.limits)):
                raise BlockError(
                    f"{num_drafts} draft tokens, group {g} ({table.spec.kind}) has states for "
                    f"{room}: plan with scheduler.num_speculative_tokens"
                )
        return Move(live, computed, 1, min(num_drafts, limits.max_model_len - computed - 1))

    def _tokens(self, moves: list[Move], token_ids: Sequence[int] | None) -> Sequence[int]:
        """One id a request; 0 stands for one that nobody needs."""
        if token_ids is not None:
            if len(token_ids) != len(moves):
                raise BlockError(f"{len(moves)} requests but {len(token_ids)} token ids")
            token_bytes(token_ids)
            plain: list[int] = np.asarray(token_ids).tolist()
            return plain
        for move in moves:
            if move.live.chain is not None:
                raise BlockError(
                    f"request {move.live.name!r} is cached by prefix: append needs its token id"
                )
        return [0] * len(moves)
