"""How long the requests are that decode in a step, as sums: what a step's time is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Lengths(Protocol):
    """Tokens stored of each of some requests."""

    @property
    def num(self) -> int:
        """How many requests."""
        ...

    @property
    def total(self) -> int: ...

    def within(self, most: int) -> int:
        """Their sum, each counted up to `most`."""
        ...

    def each(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class ListedLengths:
    """Lengths that are simply there."""

    tokens: Sequence[int] = ()

    @property
    def num(self) -> int:
        return len(self.tokens)

    @property
    def total(self) -> int:
        return sum(self.tokens)

    def within(self, most: int) -> int:
        return sum([min(n, most) for n in self.tokens])

    def each(self) -> Sequence[int]:
        return self.tokens
