"""Attention of an encoder: all tokens see each other in one pass, nothing is kept for later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec


@dataclass(frozen=True, kw_only=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """A page has a size, but a request holds no blocks. A what-if may ask for a cache instead."""

    kind: ClassVar[str] = "encoder_only"
    holds_blocks: ClassVar[bool] = False

    def max_blocks(self, limits: RequestLimits) -> int:
        return 0

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return 0

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        return 0, 0.0

    def resident(self, computed: int, new: int, limits: RequestLimits) -> range:
        return range(0)

    def written(self, computed: int, new: int, limits: RequestLimits) -> range:
        return range(0)

    def hit_length(self, cached: Sequence[bool]) -> int:
        """0: every token needs all others in the same pass."""
        return 0

    def unbounded(self) -> KVCacheSpec:
        return self.retyped(FullAttentionSpec)

    def windowed(self, window: int) -> KVCacheSpec:
        return self.retyped(SlidingWindowSpec, sliding_window=window)

    def in_chunks(self, chunk: int) -> KVCacheSpec:
        return self.retyped(ChunkedLocalAttentionSpec, attention_chunk_size=chunk)


PLUGIN = EncoderOnlyAttentionSpec
