"""What every K/V cache has in common: H heads of D numbers for each of N tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs.base import DTYPE_BYTES, KVCacheSpec, PageArray, RequestLimits, cdiv


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """num_kv_heads: heads on this rank. head_size: numbers a head, K; head_size_v: of V (None: same).
    dtype: how one number is stored, a key of DTYPE_BYTES."""

    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise SpecError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got '{self.dtype}'")
        for name in ("num_kv_heads", "head_size", "head_size_v"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name} must be at least 1, got {value}")
        super().__post_init__()

    def page_arrays(self) -> tuple[PageArray, ...]:
        width_v = self.head_size if self.head_size_v is None else self.head_size_v
        return tuple(
            PageArray(
                name=name, dtype=self.dtype, per_token=True, num_heads=self.num_kv_heads, width=w
            )
            for name, w in (("k", self.head_size), ("v", width_v))
        )

    def shard(self, tp: int) -> Self:
        """Heads are split over tp ranks, or replicated when there are more ranks than heads."""
        heads = self.num_kv_heads
        if heads % tp and tp % heads:
            legal = [n for n in range(1, 4 * heads + 1) if not heads % n or not n % heads]
            raise SpecError(
                f"{heads} KV heads cannot be split or replicated over {tp} ranks; "
                f"legal: {', '.join(map(str, legal[:12]))}"
            )
        return replace(self, num_kv_heads=max(1, heads // tp))

    # Every token stays: what full attention does, and the default of what derives from it.
    def max_blocks(self, limits: RequestLimits) -> int:
        return cdiv(cdiv(limits.max_model_len, limits.dcp * limits.pcp), self.block_size)

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return cdiv(cdiv(num_tokens, limits.dcp * limits.pcp), self.block_size)

    def resident(self, computed: int, new: int, limits: RequestLimits) -> range:
        return range(self.steady_blocks(computed + new, limits))

    def hit_length(self, cached: Sequence[bool]) -> int:
        run = next((i for i, hit in enumerate(cached) if not hit), len(cached))
        return run * self.block_size
