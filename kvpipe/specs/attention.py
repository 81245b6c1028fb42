"""What every K/V cache has in common: H heads of D numbers for each of N tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, ClassVar, TypeVar

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs._geometry import check_fields, count, dtype_of
from kvpipe.specs.base import DTYPE_BYTES, KVCacheSpec, PageArray, RequestLimits, SpecContext, cdiv
from kvpipe.specs.bounds import Bound
from kvpipe.specs.rhythm import Rhythm, rhythm
from kvpipe.specs.runs import Runs, one_run
from kvpipe.specs.scaled_rows import row_bytes

A = TypeVar("A", bound="AttentionSpec")


@lru_cache(maxsize=4096)  # of a handful of shapes
def _array(name: str, dtype: str, num_heads: int, width: int, tokens_per_row: int) -> PageArray:
    return PageArray(
        name=name,
        dtype=dtype,
        per_token=True,
        num_heads=num_heads,
        width=width,
        tokens_per_row=tokens_per_row,
    )


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """num_kv_heads: heads on this rank. head_size: numbers a head, K; head_size_v: of V (None: as
    K). dtype: how one number is stored, a key of DTYPE_BYTES.

    state_content_bytes: all that one token and head stores, where it is packed into one opaque row
    (656 bytes of fp8_ds_mla; scaled_rows.py) instead of K and V. tokens_per_state: tokens that one
    row stands for.
    dcp_sharded: whether decode context parallelism splits this cache over its ranks; that of a
    draft model is replicated instead.
    """

    # Geometry fields that a model file must and may give, beyond num_kv_heads and head_size.
    more_fields: ClassVar[tuple[str, ...]] = ()
    optional_fields: ClassVar[tuple[str, ...]] = ("head_size_v", "dtype")

    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None
    state_content_bytes: int | None = None
    tokens_per_state: int = 1
    dcp_sharded: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise SpecError(f"dtype must be one of {', '.join(DTYPE_BYTES)}", got=f"'{self.dtype}'")
        if self.head_size_v is None:  # one spelling of "as wide as K", so that equal means equal
            object.__setattr__(self, "head_size_v", self.head_size)
        for name in ("num_kv_heads", "head_size", "head_size_v", "tokens_per_state"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1", got=f"{getattr(self, name)}")
        if self.block_size % self.tokens_per_state:
            raise SpecError(
                f"block_size must be a multiple of the {self.tokens_per_state} tokens one state "
                f"stands for",
                got=f"{self.block_size}",
            )
        super().__post_init__()

    @classmethod
    def example(cls, block_size: int, **more: Any) -> Self:
        """A small instance for `examples`, of odd sizes."""
        return cls(block_size=block_size, num_kv_heads=2, head_size=3, dtype="bfloat16", **more)

    @classmethod
    def from_geometry(cls, geometry: Mapping[str, Any], context: SpecContext) -> Self:
        required = ("num_kv_heads", "head_size", *cls.more_fields)
        check_fields(cls.kind, geometry, required, cls.optional_fields)
        numbers: dict[str, Any] = {
            name: count(cls.kind, geometry, name)
            for name in (*required, *cls.optional_fields)
            if name != "dtype" and geometry.get(name) is not None
        }
        dtype = dtype_of(cls.kind, geometry, context.dtype)
        if context.scaled_rows and geometry.get("dtype") is None:
            sizes = numbers["head_size"], numbers.get("head_size_v", numbers["head_size"])
            numbers["state_content_bytes"] = row_bytes(context.scaled_rows, *sizes)
            dtype = "uint8"
        return cls(block_size=context.block_size, dtype=dtype, **numbers)

    def page_arrays(self) -> tuple[PageArray, ...]:
        return self._arrays

    @cached_property  # a plan asks hundreds of times
    def _arrays(self) -> tuple[PageArray, ...]:
        if self.state_content_bytes is not None:
            return (self._rows("kv", "uint8", self.state_content_bytes),)
        width_v = self.head_size_v or self.head_size
        return (
            self._rows("k", self.dtype, self.head_size),
            self._rows("v", self.dtype, width_v),
        )

    def _rows(self, name: str, dtype: str, width: int) -> PageArray:
        return _array(name, dtype, self.num_kv_heads, width, self.tokens_per_state)

    def shard(self, tp: int) -> Self:
        """Heads are split over tp ranks, or replicated when there are more ranks than heads."""
        heads = self.num_kv_heads
        if heads % tp and tp % heads:
            legal = ", ".join(map(str, legal_tp_sizes(heads)))
            why = f"{heads} KV heads are split or replicated"
            raise SpecError(f"one of {legal}, ... ({why})", got=f"{tp}", why=why)
        return replace(self, num_kv_heads=max(1, heads // tp))

    def retyped(self, spec_type: type[A], **extra: Any) -> A:
        """The same geometry and block size as another attention type."""
        return spec_type(
            block_size=self.block_size,
            page_size_padded=self.page_size_padded,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            head_size_v=self.head_size_v,
            dtype=self.dtype,
            state_content_bytes=self.state_content_bytes,
            tokens_per_state=self.tokens_per_state,
            dcp_sharded=self.dcp_sharded,
            **extra,
        )

    @property
    def bound(self) -> Bound | None:
        return Bound()

    def visible(self, query: int, limits: RequestLimits) -> Runs:
        assert self.bound is not None, f"{self.kind} says itself what is visible"
        return self.bound.visible(query)

    def under(self, bound: Bound, form: type[KVCacheSpec]) -> KVCacheSpec:
        if self.bound is None or (bound == self.bound and self.holds_blocks):
            return self
        assert issubclass(form, AttentionSpec), "the form of K and V stores K and V"
        return self.retyped(form, **bound.sizes)

    @property
    def is_replicated(self) -> bool:
        return not self.dcp_sharded

    def context_ranks(self, limits: RequestLimits) -> int:
        """Ranks over which the tokens of one request are spread."""
        return limits.dcp * limits.pcp if self.dcp_sharded else 1

    # Every token stays: what full attention does, and the default of what derives from it.
    def max_blocks(self, limits: RequestLimits) -> int:
        return cdiv(cdiv(limits.max_model_len, self.context_ranks(limits)), self.block_size)

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return cdiv(cdiv(num_tokens, self.context_ranks(limits)), self.block_size)

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        held = cdiv(cdiv(computed + new, self.context_ranks(limits)), self.block_size)
        return one_run(0, held)

    def tokens_per_block(self, limits: RequestLimits) -> int:
        return self.block_size * self.context_ranks(limits)

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm | None:
        """Block by block, of a cache that keeps every token; others say it themselves."""
        if not self.keeps_every_token:
            return None
        span = self.tokens_per_block(limits)
        return rhythm((1, span), edges=((1, span),))

    def hit_length(self, cached: Sequence[bool]) -> int:
        run = cached.index(False) if False in cached else len(cached)
        return run * self.block_size


def legal_tp_sizes(num_kv_heads: int, num_attention_heads: int = 0) -> list[int]:
    """Tensor-parallel sizes, the first eight: they split the K/V heads, or replicate them where
    there are more ranks than heads, and split the query heads (0: not known how many)."""
    sizes = (
        n
        for n in range(1, (num_attention_heads or 8 * num_kv_heads) + 1)
        if (not num_kv_heads % n or not n % num_kv_heads) and not num_attention_heads % n
    )
    return list(islice(sizes, 8))


def longest_run_hit(cached: Sequence[bool], first_needed: Iterable[int]) -> int:
    """Longest prefix, in blocks, that is served when a prefix of i blocks needs only its blocks
    from the i-th of `first_needed` on (non-decreasing; one entry for each i in 0..len(cached))."""
    best = run_start = 0
    for i, first in enumerate(first_needed):
        if i and not cached[i - 1]:
            run_start = i
        if first >= run_start:
            best = i
    return best
