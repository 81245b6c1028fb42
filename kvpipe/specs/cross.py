"""Cross attention of an encoder-decoder: K and V of the encoder's output, written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import RequestLimits, cdiv


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Blocks depend on the encoder's tokens (limits.max_encoder_tokens), not on the decoder's."""

    kind: ClassVar[str] = "cross"

    def max_blocks(self, limits: RequestLimits) -> int:
        return cdiv(limits.max_encoder_tokens, self.block_size)

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return self.max_blocks(limits)

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        return self.max_blocks(limits), 0.0

    def resident(self, computed: int, new: int, limits: RequestLimits) -> range:
        return range(self.max_blocks(limits))

    def written(self, computed: int, new: int, limits: RequestLimits) -> range:
        """The encoder's tokens, with the decoder's first."""
        return range(0 if computed else limits.max_encoder_tokens)

    def hit_length(self, cached: Sequence[bool]) -> int:
        """0: a prefix of the decoder's tokens says nothing about the encoder's input."""
        return 0


PLUGIN = CrossAttentionSpec
