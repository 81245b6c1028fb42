"""Multi-head latent attention: one compressed row a token (DeepSeek-V2, arXiv:2405.04434)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import Self

from kvpipe.specs._latent import FP8_DS_MLA, LatentSpec


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(LatentSpec):
    """The latent row of every token. A sparse-attention indexer's key cache is one, too."""

    kind: ClassVar[str] = "mla"
    keeps_every_token: ClassVar[bool] = True

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls.example(1), cls.example(3), cls.example(16, cache_dtype=FP8_DS_MLA)]

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("full", self.dcp_sharded)


PLUGIN = MLAAttentionSpec
