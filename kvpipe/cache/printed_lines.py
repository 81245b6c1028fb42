"""What each engine would print for a plan: worked out when somebody looks, since a line is a plan.

Reads like a tuple, the run's own engine first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class PrintedLines(Sequence[T], Generic[T]):
    """own: the run's line. others: one call for each further line, made once, when it is read."""

    def __init__(self, own: T, others: Sequence[Callable[[], T]] = ()) -> None:
        self._lines: list[T | None] = [own, *[None] * len(others)]
        self._others = tuple(others)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._line(range(len(self._lines))[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._line, range(len(self._lines)))

    def _line(self, index: int) -> T:
        line = self._lines[index]
        if line is None:
            line = self._lines[index] = self._others[index - 1]()
        return line

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, PrintedLines) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[object, ...]:
        return tuple, (tuple(self),)  # what is sent elsewhere is worked out first
