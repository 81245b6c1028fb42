"""Which request has which row: the same row number in every group's table.

What a decode step asks of every request of its batch lies in arrays by row; the rest in
`LiveRequest` objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, MutableSequence, Sequence

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.errors import BlockError
from kvpipe.blocks.request import LiveRequest, SwappedRequest

_DISCARD: deque[int] = deque(maxlen=0)  # for tokens of requests whose prefixes are not cached

Rows = npt.NDArray[np.intp]


class Seats:
    """num_tokens [R] int64: tokens stored. pending [R]: where a row's next token ids go."""

    def __init__(self, num_rows: int) -> None:
        self.live: dict[Hashable, LiveRequest] = {}
        self.swapped: dict[Hashable, SwappedRequest] = {}
        self.standing: dict[Hashable, LiveRequest] = {}  # a `StandingBatch` has them
        self.num_tokens = np.zeros(num_rows, np.int64)
        self.stored_of = self.num_tokens.data  # the same memory, for one row at a time
        self.pending: list[MutableSequence[int]] = [_DISCARD] * num_rows
        self._row_of: dict[Hashable, int] = {}
        self._at_row: list[LiveRequest | None] = [None] * num_rows
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._last_batch: tuple[list[Hashable], list[int]] = ([], [])
        self._last_array: Rows | None = None  # its rows, where a step needed them so

    def seat(self, live: LiveRequest, num_tokens: int) -> LiveRequest:
        live.row = self._free_rows.pop()
        self.live[live.name] = live
        self._row_of[live.name] = live.row
        self._at_row[live.row] = live
        self.pending[live.row] = _DISCARD if live.chain is None else live.pending
        self.stored_of[live.row] = num_tokens
        return live

    def unseat(self, live: LiveRequest) -> None:
        del self.live[live.name], self._row_of[live.name]
        self._last_batch, self._last_array = ([], []), None
        self._at_row[live.row] = None
        self._free_rows.append(live.row)

    def set_standing(self, live: LiveRequest) -> None:
        """A batch keeps count of the request from now on: nobody else finds it."""
        self._last_batch, self._last_array = ([], []), None
        del self.live[live.name], self._row_of[live.name]
        self.standing[live.name] = live

    def end_standing(self, live: LiveRequest) -> None:
        del self.standing[live.name]
        self.live[live.name] = live
        self._row_of[live.name] = live.row

    def at(self, row: int) -> LiveRequest:
        live = self._at_row[row]
        assert live is not None, f"row {row} is empty"
        return live

    def find(self, request: Hashable) -> LiveRequest:
        """BlockError where the request is not live."""
        try:
            return self.live[request]
        except KeyError:
            raise BlockError(self._why_not_live(request)) from None

    def rows(self, requests: Sequence[Hashable]) -> list[int]:
        """[n] rows of live requests, each named once."""
        names, rows = self._last_batch
        if requests == names:  # the batch of the step before, most often
            return rows
        try:
            rows = list(map(self._row_of.__getitem__, requests))
        except KeyError as error:
            raise BlockError(self._why_not_live(error.args[0])) from None
        if len(set(requests)) != len(rows):
            raise BlockError("a request is named twice in one step")
        self._last_batch, self._last_array = (list(requests), rows), None
        return rows

    def as_array(self, rows: list[int]) -> Rows:
        """[n] the same rows; of the last batch made once."""
        if rows is not self._last_batch[1]:
            return np.array(rows, np.intp)
        if self._last_array is None:
            self._last_array = np.array(rows, np.intp)
        return self._last_array

    def refuse_new(self, request: Hashable) -> None:
        """BlockError where a request of this name, or any, cannot be seated."""
        if request in self.live or request in self.swapped or request in self.standing:
            raise BlockError(f"request {request!r} is live already")
        self.refuse_full()

    def refuse_full(self) -> None:
        if not self._free_rows:
            raise BlockError(
                f"all {len(self._at_row)} rows are taken: free a request, or raise max_num_requests"
            )

    def _why_not_live(self, request: Hashable) -> str:
        if request in self.swapped:
            return f"request {request!r} is swapped out: swap it in first"
        if request in self.standing:
            return f"request {request!r} decodes in a standing batch: let it leave first"
        return f"request {request!r} is not live: it is finished, or was never added"
