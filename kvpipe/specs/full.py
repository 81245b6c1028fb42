"""Full attention: every token of the request stays (Vaswani et al., arXiv:1706.03762).

The tutorial of this folder: a spec is a frozen dataclass, a `kind`, the answers in which it differs
from its base, and `PLUGIN`. Here: how it merges, and what it becomes in a what-if.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kvpipe.errors import SpecError
from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import KVCacheSpec, differing

REMEMBERED = frozenset({"sliding_window", "attention_chunk_size"})


class WindowConflict(SpecError):
    """Layers that remember different windows (or chunks) cannot become one group."""


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """K and V of every token, H heads of D (V may be narrower).

    sliding_window, attention_chunk_size: what a promoted layer still computes with, although its
    cache keeps every token (see `promoted`); it frees no blocks.
    """

    kind: ClassVar[str] = "full"
    keeps_every_token: ClassVar[bool] = True

    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("full", self.dcp_sharded)

    def _kind_problem(self, other: KVCacheSpec, ignore: frozenset[str]) -> str:
        joins = other.kind == self.kind or ("kind" in ignore and other.kind in ("full", "sink"))
        return "" if joins else f"{other.kind} next to {self.kind}"

    def merge_problem(self, other: KVCacheSpec, ignore: frozenset[str] = frozenset()) -> str:
        """As the base. Where an engine ignores `kind`, any plain K/V that keeps every token may
        join (a sink layer beside full ones). Remembered windows are `merge`'s matter."""
        return self._kind_problem(other, ignore) or differing(self, other, ignore | REMEMBERED)

    def merge(
        self, others: Iterable[KVCacheSpec], ignore: frozenset[str] = frozenset()
    ) -> KVCacheSpec:
        """One remembered window beside none is shared; two are a WindowConflict, whatever the
        other fields say."""
        others = tuple(others)
        for problem in (self._kind_problem(other, ignore) for other in others):
            if problem:
                raise SpecError(problem)
        found: dict[str, Any] = {
            name: remembered((self, *others), name) for name in sorted(REMEMBERED)
        }
        super().merge(others, ignore)
        if all(found.values()):
            raise SpecError("a layer with a sliding window next to one with a chunk size")
        return replace(self, **found)

    def windowed(self, window: int) -> KVCacheSpec:
        from kvpipe.specs.sliding import SlidingWindowSpec

        return self.retyped(SlidingWindowSpec, sliding_window=window)

    def in_chunks(self, chunk: int) -> KVCacheSpec:
        from kvpipe.specs.chunked import ChunkedLocalAttentionSpec

        return self.retyped(ChunkedLocalAttentionSpec, attention_chunk_size=chunk)

    @classmethod
    def what_if(cls, spec: KVCacheSpec, options: Mapping[str, Any]) -> KVCacheSpec:
        return spec.unbounded()


def remembered(specs: Iterable[KVCacheSpec], name: str) -> int | None:
    """The one window (or chunk) that some of the specs remember; None if none does."""
    values: list[int] = sorted({getattr(spec, name) for spec in specs} - {None})
    if len(values) > 1:
        raise WindowConflict(f"two values of {name} in one group: {values[0]} and {values[1]}")
    return values[0] if values else None


PLUGIN = FullAttentionSpec
