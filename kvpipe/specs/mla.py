"""Multi-head latent attention: one compressed row a token (DeepSeek-V2, arXiv:2405.04434)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpipe.specs._latent import LatentSpec
from kvpipe.specs.base import KVCacheSpec


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(LatentSpec):
    """The latent row of every token. A sparse-attention indexer's key cache is one, too."""

    kind: ClassVar[str] = "mla"
    keeps_every_token: ClassVar[bool] = True

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("full", self.dcp_sharded)

    def windowed(self, window: int) -> KVCacheSpec:
        from kvpipe.specs.sliding_mla import SlidingWindowMLASpec

        return self.retyped(
            SlidingWindowMLASpec,
            sliding_window=window,
            cache_dtype=self.cache_dtype,
            alignment=self.alignment,
        )


PLUGIN = MLAAttentionSpec
