"""A latent cache of which only the last W tokens are seen (DeepSeek-V4 style local layers)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpipe.errors import SpecError
from kvpipe.specs._latent import LatentSpec
from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.sliding import SlidingWindowSpec


@dataclass(frozen=True, kw_only=True)
class SlidingWindowMLASpec(LatentSpec, SlidingWindowSpec):
    """The rows of a latent cache under the block rules of a sliding window."""

    kind: ClassVar[str] = "sliding_mla"
    takes_scaled_rows: ClassVar[bool] = False

    def same_type(self, other: KVCacheSpec) -> bool:
        """It may follow ordinary windows of its size, but no ordinary window follows it."""
        return other.is_latent and other.type_key == self.type_key

    def promoted(self) -> KVCacheSpec:
        raise SpecError("a sliding MLA cache cannot be turned into one that keeps every token")


PLUGIN = SlidingWindowMLASpec
