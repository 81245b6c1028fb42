"""Chunked local attention: a token sees its own chunk of C tokens only (Llama 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs._geometry import option
from kvpipe.specs.attention import AttentionSpec, longest_run_hit
from kvpipe.specs.base import KVCacheSpec, RequestLimits, cdiv
from kvpipe.specs.bounds import Bound
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.rhythm import Rhythm, rhythm
from kvpipe.specs.runs import Runs, num_indices, one_run


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
                "attention_chunk_size must be at least 1 token", got=f"{self.attention_chunk_size}"
            )
        super().__post_init__()

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("chunked", self.attention_chunk_size, self.dcp_sharded)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        sizes = ((3, 7), (4, 8), (16, 21))
        return [cls.example(block, attention_chunk_size=chunk) for block, chunk in sizes]

    @property
    def bound(self) -> Bound:
        return Bound(attention_chunk_size=self.attention_chunk_size)

    def max_blocks(self, limits: RequestLimits) -> int:
        """The engines' bound, which is a block short where chunks start inside blocks."""
        held = min(self.attention_chunk_size + limits.tokens_in_flight, limits.max_model_len)
        return cdiv(held, self.block_size)

    def peak_blocks(self, limits: RequestLimits) -> int:
        """What is really reached: by a step that starts with the last token of a chunk. The chunk
        may start anywhere in its block; of those whose step is whole the latest start is worst."""
        chunk, size, length = self.attention_chunk_size, self.block_size, limits.max_model_len
        held = chunk - 1 + limits.tokens_in_flight
        whole = max(0, (length - held) // chunk + 1)  # chunks before which `held` tokens still fit
        starts = (i * chunk % size for i in range(min(whole, size // gcd(chunk, size))))
        most = max((cdiv(start + held, size) for start in starts), default=0)
        if whole * chunk >= length:
            return most
        return max(most, cdiv(length, size) - whole * chunk // size)

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return num_indices(self.resident(num_tokens - 1, 1, limits)) if num_tokens else 0

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        """A full chunk and the block it starts in; where no chunk is ever full, every token."""
        if self.attention_chunk_size >= limits.max_model_len:
            return super().steady_cost(limits)
        return cdiv(self.attention_chunk_size - 1, self.block_size) + 1, 0.0

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm:
        """Steady: chunk after chunk. At the peak like every token, until a chunk and the tokens in
        flight are held; where chunks start inside blocks, each of their starts must come first."""
        chunk, size = self.attention_chunk_size, self.block_size
        both = lcm(chunk, size)
        if not in_flight:
            return rhythm((1, both), edges=((1, size), (1, chunk)))
        held = chunk - 1 + limits.tokens_in_flight
        edges = ((1, size), (held, chunk), (held + 1, chunk))
        if both == chunk:
            return rhythm((1, size), (held, size), edges=edges)
        return rhythm((1, None), (held + both, size), edges=edges)

    def _first_block(self, computed: int) -> int:
        """The block that holds the first token of the chunk of token number `computed`."""
        return computed // self.attention_chunk_size * self.attention_chunk_size // self.block_size

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        return one_run(self._first_block(computed), cdiv(computed + new, self.block_size))

    def hit_length(self, cached: Sequence[bool]) -> int:
        """The next token sees its chunk so far: only those blocks must be cached."""
        needed = (self._first_block(i * self.block_size) for i in range(len(cached) + 1))
        return longest_run_hit(cached, needed) * self.block_size

    def promoted(self) -> KVCacheSpec:
        return self.retyped(FullAttentionSpec, remembers=self.bound)

    @classmethod
    def what_if(cls, spec: KVCacheSpec, options: Mapping[str, Any]) -> KVCacheSpec:
        chunk = option(cls.kind, options, "attention_chunk_size")
        return spec.narrowed(Bound(attention_chunk_size=chunk), cls)


PLUGIN = ChunkedLocalAttentionSpec
