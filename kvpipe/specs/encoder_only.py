"""Attention of an encoder: all tokens see each other in one pass, nothing is kept for later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import Self

from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import RequestLimits
from kvpipe.specs.rhythm import CONSTANT, Rhythm
from kvpipe.specs.runs import Runs


@dataclass(frozen=True, kw_only=True)
class EncoderOnlyAttentionSpec(AttentionSpec):
    """A page has a size, but a request holds no blocks. A what-if may ask for a cache instead."""

    kind: ClassVar[str] = "encoder_only"
    holds_blocks: ClassVar[bool] = False

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls.example(3), cls.example(16)]

    def visible(self, query: int, limits: RequestLimits) -> Runs:
        """Nothing that was stored: all tokens are in the same pass."""
        return ()

    def max_blocks(self, limits: RequestLimits) -> int:
        return 0

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return 0

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        return 0, 0.0

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm:
        return CONSTANT

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        return ()

    def written(self, computed: int, new: int, limits: RequestLimits) -> range:
        return range(0)

    def hit_length(self, cached: Sequence[bool]) -> int:
        """0: every token needs all others in the same pass."""
        return 0


PLUGIN = EncoderOnlyAttentionSpec
