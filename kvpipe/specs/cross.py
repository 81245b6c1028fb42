"""Cross attention of an encoder-decoder: K and V of the encoder's output, written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import Self

from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import RequestLimits, cdiv
from kvpipe.specs.rhythm import CONSTANT, Rhythm
from kvpipe.specs.runs import Runs, joined


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """Blocks depend on the encoder's tokens (limits.max_encoder_tokens), not on the decoder's."""

    kind: ClassVar[str] = "cross"

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls.example(3), cls.example(16)]

    @property
    def bound(self) -> None:
        return None

    def visible(self, query: int, limits: RequestLimits) -> Runs:
        """Everything the encoder put out."""
        return joined(range(limits.max_encoder_tokens))

    def max_blocks(self, limits: RequestLimits) -> int:
        return cdiv(limits.max_encoder_tokens, self.block_size)

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return self.max_blocks(limits)

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        return self.max_blocks(limits), 0.0

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm:
        return CONSTANT

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        return joined(range(self.max_blocks(limits)))

    def written(self, computed: int, new: int, limits: RequestLimits) -> range:
        """The encoder's tokens, with the decoder's first."""
        return range(0 if computed else limits.max_encoder_tokens)

    def hit_length(self, cached: Sequence[bool]) -> int:
        """0: a prefix of the decoder's tokens says nothing about the encoder's input."""
        return 0


PLUGIN = CrossAttentionSpec
