"""Requests that decode together, step after step: only those are looked at that need something.

    batch = manager.standing_batch()
    batch.join("a", token=17, order=0)       # from now on the batch's: other calls refuse it
    copies = batch.step()                    # a token more of each member, for all or for none
    batch.leave("a")                         # as `append` would have left it

For an engine that is simulated: a step costs what changes in it, however many requests run. It
leaves the very blocks that `append` of the members, in their order, leaves; no slots are written.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from kvpipe.blocks.decoding import Decoding
from kvpipe.blocks.errors import BlockError
from kvpipe.blocks.request import BlockCopy, LiveRequest


@dataclass(slots=True, eq=False)
class _Member:
    """first: its tokens stored, less the steps of the batch when it joined. slot_from: the step
    for which its tables' next slots are right. due: the step before which it needs nothing."""

    live: LiveRequest
    token: int
    order: int
    first: int
    slot_from: int
    due: int


class StandingBatch:
    """steps: how many were done. Each member stores a token in each."""

    def __init__(self, decoding: Decoding) -> None:
        self.steps = 0
        self._decoding, self._seats = decoding, decoding.seats
        self._members: dict[Hashable, _Member] = {}
        self._due_at: dict[int, list[_Member]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, request: Hashable, token: int, order: int) -> None:
        """A live request that decodes from now on. token: the id of all its tokens, as far as it is
        cached by prefix. order: its place among the members, lowest first; blocks are handed out in
        that order."""
        live = self._seats.find(request)
        stored: int = self._seats.stored_of[live.row]
        self._decoding.granter.refuse_undecodable(request, stored)
        self._seats.set_standing(live)
        live.drafted = 0
        until: int = self._decoding.granter.until_of[live.row]
        member = _Member(live, token, order, stored - self.steps, self.steps, 0)
        self._members[request] = member
        self._expect(member, max(until, stored))

    def leave(self, request: Hashable) -> None:
        """The request decodes no longer here: every other call may name it again."""
        member = self._members.pop(request, None)
        if member is None:
            raise BlockError(f"request {request!r} is not in the batch")
        self._write(member)
        self._due_at[member.due].remove(member)
        if not self._due_at[member.due]:
            del self._due_at[member.due]
        self._seats.end_standing(member.live)

    def step(self) -> tuple[BlockCopy, ...]:
        """One token more of each member. OutOfBlocks where the pool cannot give what they need:
        then nothing has changed."""
        due = self._due_at.get(self.steps)
        copies: tuple[BlockCopy, ...] = ()
        if due is not None:
            due.sort(key=_order)
            copies = self._grant(due)
        self.steps += 1
        if (full := self._due_at.get(self.steps)) is not None:
            self._complete(full)
        return copies

    # --- parts -----------------------------------------------------------------------------------
    def _expect(self, member: _Member, until: int) -> None:
        """Nothing is needed before the step that finds so many tokens stored."""
        member.due = until - member.first
        self._due_at.setdefault(member.due, []).append(member)

    def _grant(self, due: list[_Member]) -> tuple[BlockCopy, ...]:
        rows, stored, steps = [], [], self.steps
        for member in due:
            row, tokens = member.live.row, member.first + steps
            rows.append(row)
            stored.append(tokens)
            self._seats.stored_of[row] = tokens
        copies = self._decoding.grant(rows, stored)
        del self._due_at[steps]
        until_of = self._decoding.granter.until_of
        for member, row in zip(due, rows, strict=True):
            member.slot_from = steps
            self._expect(member, until_of[row])
        return copies

    def _complete(self, members: list[_Member]) -> None:
        """Those that stored the last token before they need something: it may fill blocks."""
        prefixes, stored_of = self._decoding.prefixes, self._seats.stored_of
        if not prefixes.enabled:
            return
        if len(members) > 1:
            members.sort(key=_order)
        for member in members:
            live, stored = member.live, member.first + self.steps
            if live.chain is not None and not stored % prefixes.granule:
                stored_of[live.row] = stored
                self._learn(member, stored)
                prefixes.complete_at(live, stored)

    def _learn(self, member: _Member, stored: int) -> None:
        """The tokens that came since."""
        live = member.live
        live.pending += [member.token] * (stored - live.known_tokens)

    def _write(self, member: _Member) -> None:
        """What `append` would have written of the member at every step."""
        live, stored = member.live, member.first + self.steps
        self._seats.stored_of[live.row] = stored
        if live.chain is not None and self._decoding.prefixes.enabled:
            self._learn(member, stored)
        since = self.steps - member.slot_from
        for table, _ in self._decoding.groups:
            table.next_slot_of[live.row] += since * table.advance_of[live.row]


def _order(member: _Member) -> int:
    return member.order
