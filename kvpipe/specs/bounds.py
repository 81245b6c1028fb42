"""Bound: which tokens a query reads. What a what-if asks of a layer, and what a layer answers.

A spec gives its bound and takes one (`KVCacheSpec.bound`, `narrowed`, `under`). A new sort of bound
is a subclass with its sizes and its own `visible`; nobody else needs to know it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs.runs import Runs, joined


class WindowConflict(SpecError):
    """Layers that remember different sizes of one bound cannot become one group."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """All tokens before a query, and itself, where no size is set; sizes in tokens.

    sliding_window: the last W, itself included. attention_chunk_size: those of its own chunk of C.
    num_sink_tokens: the first S as well.
    """

    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    num_sink_tokens: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are set, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: size for name, size in found.items() if size is not None}

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def visible(self, query: int) -> Runs:
        """The positions that token number `query` reads."""
        first = 0
        if self.sliding_window is not None:
            first = max(first, query - self.sliding_window + 1)
        if self.attention_chunk_size is not None:
            first = max(first, query - query % self.attention_chunk_size)
        return joined(range(min(self.num_sink_tokens or 0, first)), range(first, query + 1))

    def narrowed(self, asked: Bound) -> Bound | None:
        """No more than both let a query read, size by size; None where they differ in sort (a
        window of chunks is no bound that a cache has)."""
        if not self:
            return asked
        mine, other = self.sizes, asked.sizes
        if type(asked) is not type(self) or mine.keys() != other.keys():
            return None
        return self._with({name: min(size, other[name]) for name, size in mine.items()})

    def _with(self, sizes: dict[str, int]) -> Self:
        return replace(self, **sizes)


def the_one_bound(bounds: Iterable[Bound]) -> Bound:
    """The bound that some of the layers have, beside layers without any. WindowConflict where one
    size has two values, SpecError where two sorts stand side by side."""
    found = list(dict.fromkeys(bound for bound in bounds if bound))
    for name in sorted({name for bound in found for name in bound.sizes}):
        values = sorted({bound.sizes[name] for bound in found if name in bound.sizes})
        if len(values) > 1:
            raise WindowConflict(f"two values of {name} in one group: {values[0]} and {values[1]}")
    if len(found) > 1:
        one, other = (", ".join(bound.sizes) for bound in found[:2])
        raise SpecError(f"a layer that remembers {one} next to one that remembers {other}")
    return found[0] if found else Bound()
