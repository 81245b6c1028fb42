"""Full attention: every token of the request stays (Vaswani et al., arXiv:1706.03762).

The tutorial of this folder: a spec is a frozen dataclass, a `kind`, the answers in which it differs
from its base, `examples` of itself for the tests, and `PLUGIN`. Here: how it merges, and what it
becomes in a what-if.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs._differing import differing
from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.bounds import Bound, the_one_bound

NOT_COMPARED = frozenset({"remembers"})


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    """K and V of every token, H heads of D (V may be narrower).

    remembers: what a promoted layer still reads, although its cache keeps every token (see
    `promoted`); it frees no blocks.
    """

    kind: ClassVar[str] = "full"
    takes_scaled_rows: ClassVar[bool] = True
    keeps_every_token: ClassVar[bool] = True

    remembers: Bound = Bound()

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls.example(1), cls.example(3), cls.example(16)]

    @property
    def bound(self) -> Bound:
        return self.remembers

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("full", self.dcp_sharded)

    def own_fields(self) -> dict[str, object]:
        """The remembered sizes stand among the others, the two that engines know always."""
        own = super().own_fields()
        always = {"sliding_window": None, "attention_chunk_size": None}
        remembered = always | self.remembers.sizes
        return {
            key: value
            for name, old in own.items()
            for key, value in (remembered.items() if name == "remembers" else [(name, old)])
        }

    def _kind_problem(self, other: KVCacheSpec, ignore: frozenset[str]) -> str:
        joins = type(other) is type(self) or ("kind" in ignore and other.stores == self.stores)
        return "" if joins else f"{other.kind} next to {self.kind}"

    def merge_problem(self, other: KVCacheSpec, ignore: frozenset[str] = frozenset()) -> str:
        """As the base. Where an engine ignores `kind`, any plain K/V that keeps every token may
        join (a sink layer beside full ones). Remembered bounds are `merge`'s matter."""
        return self._kind_problem(other, ignore) or differing(self, other, ignore | NOT_COMPARED)

    def merge(
        self, others: Iterable[KVCacheSpec], ignore: frozenset[str] = frozenset()
    ) -> KVCacheSpec:
        """One remembered bound beside none is shared; two sizes of it are a WindowConflict,
        whatever the other fields say."""
        others = tuple(others)
        for problem in (self._kind_problem(other, ignore) for other in others):
            if problem:
                raise SpecError(problem)
        remembers = the_one_bound(spec.bound or Bound() for spec in (self, *others))
        super().merge(others, ignore)
        return replace(self, remembers=remembers)

    @classmethod
    def what_if(cls, spec: KVCacheSpec, options: Mapping[str, Any]) -> KVCacheSpec:
        return spec.under(Bound(), cls)


PLUGIN = FullAttentionSpec
