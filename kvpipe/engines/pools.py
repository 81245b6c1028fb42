"""What an engine makes of its bytes: pools of units, and how many units requests take from them.

unit: what the engine hands out and counts (a token, a slot, a block, a cell, a sector), once for
all layers of the pool on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvpipe.specs.base import cdiv

Mark = Literal["checked", "read", "inferred"]
"""How a rule is known. checked: the engine's own code was run against it. read: in its source, not
executed. inferred: concluded from something else."""
MARKS: tuple[Mark, ...] = ("checked", "read", "inferred")


def weakest(marks: Sequence[Mark]) -> Mark:
    """The mark of a figure that rests on several rules."""
    return max(marks, key=MARKS.index, default="checked")


class Demand(Protocol):
    def units(self, requests: int, length: int, prefilling: bool) -> int:
        """Units that `requests` of `length` tokens hold at once: all of them reading their prompt
        (the most a request ever holds), or all decoding. Never fewer for more or longer ones."""
        ...


@dataclass(frozen=True, kw_only=True)
class EveryToken:
    """Each token of a request, in whole pages of `page` units; `beside`: units more a request."""

    page: int = 1
    beside: int = 0

    def units(self, requests: int, length: int, prefilling: bool) -> int:
        return requests * (cdiv(length + self.beside, self.page) * self.page)


@dataclass(frozen=True, kw_only=True)
class LastTokens:
    """The last `window` tokens. late: tokens that have left the window and are not freed yet;
    chunk: those that a prompt brings in one step."""

    window: int
    late: int = 0
    chunk: int = 0
    page: int = 1

    def units(self, requests: int, length: int, prefilling: bool) -> int:
        held = self.window + self.late + (self.chunk if prefilling else 0)
        return requests * (cdiv(min(length, held), self.page) * self.page)


@dataclass(frozen=True, kw_only=True)
class BlocksOf:
    """Blocks of `size` tokens: those of every token, or of the last `window`."""

    size: int
    window: int | None = None
    chunk: int = 0

    def units(self, requests: int, length: int, prefilling: bool) -> int:
        held = length
        if self.window is not None:
            held = min(length, self.window + (self.chunk if prefilling else 0))
        return requests * cdiv(held, self.size)


@dataclass(frozen=True, kw_only=True)
class PerRequest:
    """The same for every request, however long."""

    each: int = 1

    def units(self, requests: int, length: int, prefilling: bool) -> int:
        return requests * self.each


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Units cut into smaller ones of several sorts: `parts` are (demand, smaller ones a unit). A
    unit belongs to one sort at a time."""

    parts: tuple[tuple[Demand, int], ...]

    def units(self, requests: int, length: int, prefilling: bool) -> int:
        return sum(
            cdiv(demand.units(requests, length, prefilling), per_unit)
            for demand, per_unit in self.parts
        )


@dataclass(frozen=True, kw_only=True)
class EnginePool:
    """count: units that requests may hold. unit_bytes: of one unit, on one rank. spare_bytes: what
    the pool allocates beside them and no request gets. rule: how count came about, in words."""

    name: str
    unit: str
    count: int
    unit_bytes: int | float
    demand: Demand
    mark: Mark
    rule: str
    spare_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return int(self.count * self.unit_bytes)

    def holds(self, requests: int, length: int, prefilling: bool) -> bool:
        return self.demand.units(requests, length, prefilling) <= self.count
