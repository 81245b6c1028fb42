"""Chunked local attention: a token sees its own chunk of C tokens only (Llama 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kvpipe.errors import SpecError
from kvpipe.specs._geometry import option
from kvpipe.specs.attention import AttentionSpec, longest_run_hit
from kvpipe.specs.base import KVCacheSpec, RequestLimits, cdiv
from kvpipe.specs.full import FullAttentionSpec


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """attention_chunk_size: C tokens. Blocks before the chunk of the oldest token in flight are
    free."""

    kind: ClassVar[str] = "chunked"
    more_fields: ClassVar[tuple[str, ...]] = ("attention_chunk_size",)

    attention_chunk_size: int

    def __post_init__(self) -> None:
        if self.attention_chunk_size < 1:
            raise SpecError(
                f"attention_chunk_size must be at least 1 token, got {self.attention_chunk_size}"
            )
        super().__post_init__()

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("chunked", self.attention_chunk_size, self.dcp_sharded)

    def max_blocks(self, limits: RequestLimits) -> int:
        held = min(self.attention_chunk_size + limits.tokens_in_flight, limits.max_model_len)
        return cdiv(held, self.block_size)

    def peak_blocks(self, limits: RequestLimits) -> int:
        """One more than the engines' bound where a chunk may start in the middle of a block."""
        if self.attention_chunk_size % self.block_size == 0:
            return self.max_blocks(limits)
        return min(self.max_blocks(limits) + 1, cdiv(limits.max_model_len, self.block_size))

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return len(self.resident(num_tokens - 1, 1, limits)) if num_tokens else 0

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        """A full chunk and the block it starts in; where no chunk is ever full, every token."""
        if self.attention_chunk_size >= limits.max_model_len:
            return super().steady_cost(limits)
        return cdiv(self.attention_chunk_size - 1, self.block_size) + 1, 0.0

    def _first_block(self, computed: int) -> int:
        """The block that holds the first token of the chunk of token number `computed`."""
        return computed // self.attention_chunk_size * self.attention_chunk_size // self.block_size

    def resident(self, computed: int, new: int, limits: RequestLimits) -> range:
        return range(self._first_block(computed), cdiv(computed + new, self.block_size))

    def hit_length(self, cached: Sequence[bool]) -> int:
        """The next token sees its chunk so far: only those blocks must be cached."""
        needed = (self._first_block(i * self.block_size) for i in range(len(cached) + 1))
        return longest_run_hit(cached, needed) * self.block_size

    def promoted(self) -> KVCacheSpec:
        return self.retyped(FullAttentionSpec, attention_chunk_size=self.attention_chunk_size)

    def unbounded(self) -> KVCacheSpec:
        return self.retyped(FullAttentionSpec)

    def in_chunks(self, chunk: int) -> KVCacheSpec:
        return replace(self, attention_chunk_size=min(chunk, self.attention_chunk_size))

    @classmethod
    def what_if(cls, spec: KVCacheSpec, options: Mapping[str, Any]) -> KVCacheSpec:
        return spec.in_chunks(option(cls.kind, options, "attention_chunk_size"))


PLUGIN = ChunkedLocalAttentionSpec
