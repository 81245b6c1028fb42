"""Many requests in little memory: numbers in columns, 28 bytes a request and 8 a prefix id.

A million requests as objects take some 200 bytes each; a replay looks at one at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRequest:
    """arrival_s: seconds since the first request. Lengths in tokens; the last output token is
    never stored. prefix_ids: an id for each block of prefix_block tokens of the prompt (the last
    may be short); equal ids mean equal tokens up to there."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    prefix_block: int = 0


class Requests(Sequence[TraceRequest]):
    """Each request is made when it is read. Lengths below 2**31, prefix ids below 2**63."""

    def __init__(self, requests: Iterable[TraceRequest] = ()) -> None:
        self.arrival_s = array("d")
        self.prompt_tokens, self.output_tokens = array("i"), array("i")
        self._prefix_block, self._prefix_ids = array("i"), array("q")
        self._ids_until = array("q", [0])  # of each request, after that of the one before
        for request in requests:
            self.append(request)

    def append(self, request: TraceRequest) -> None:
        self.arrival_s.append(request.arrival_s)
        self.prompt_tokens.append(request.prompt_tokens)
        self.output_tokens.append(request.output_tokens)
        self._prefix_block.append(request.prefix_block)
        self._prefix_ids.extend(request.prefix_ids)
        self._ids_until.append(len(self._prefix_ids))

    @property
    def num_prefix_ids(self) -> int:
        return len(self._prefix_ids)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @overload
    def __getitem__(self, at: int) -> TraceRequest: ...
    @overload
    def __getitem__(self, at: slice) -> list[TraceRequest]: ...
    def __getitem__(self, at: int | slice) -> TraceRequest | list[TraceRequest]:
        if isinstance(at, slice):
            return [self._at(i) for i in range(*at.indices(len(self)))]
        return self._at(range(len(self))[at])

    def __iter__(self) -> Iterator[TraceRequest]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Requests):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def in_order(self) -> Requests:
        """By arrival, those of one moment as they stand; the first at 0 s."""
        order = sorted(range(len(self)), key=self.arrival_s.__getitem__)
        found = self if order == list(range(len(self))) else Requests(map(self._at, order))
        if found.arrival_s:
            start = found.arrival_s[0]
            found.arrival_s = array("d", [seconds - start for seconds in found.arrival_s])
        return found

    def _at(self, i: int) -> TraceRequest:
        first, stop = self._ids_until[i], self._ids_until[i + 1]
        return TraceRequest(
            arrival_s=self.arrival_s[i],
            prompt_tokens=self.prompt_tokens[i],
            output_tokens=self.output_tokens[i],
            prefix_ids=tuple(self._prefix_ids[first:stop]) if first < stop else (),
            prefix_block=self._prefix_block[i],
        )
