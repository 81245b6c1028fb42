"""Sliding-window attention: a token sees the last W tokens, itself included (arXiv:2310.06825)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs._geometry import option
from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import KVCacheSpec, RequestLimits, cdiv
from kvpipe.specs.bounds import Bound
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.rhythm import Rhythm, rhythm
from kvpipe.specs.runs import Runs, num_indices, one_run


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec):
    """sliding_window: W tokens. A block is free once its last token is W tokens behind.

    Most tokens held: the W - 1 before the oldest token in flight, and those in flight; they may
    start in the middle of a block, hence one block more.
    """

    kind: ClassVar[str] = "sliding"
    takes_scaled_rows: ClassVar[bool] = True
    more_fields: ClassVar[tuple[str, ...]] = ("sliding_window",)
    reads_cache_window: ClassVar[bool] = True

    sliding_window: int

    def __post_init__(self) -> None:
        if self.sliding_window < 1:
            raise SpecError("sliding_window must be at least 1 token", got=f"{self.sliding_window}")
        super().__post_init__()

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("sliding", self.sliding_window, self.dcp_sharded)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        sizes = ((3, 5), (4, 1), (16, 33))
        return [cls.example(block, sliding_window=window) for block, window in sizes]

    @property
    def bound(self) -> Bound:
        return Bound(sliding_window=self.sliding_window)

    def _reach(self, limits: RequestLimits) -> int:
        """Tokens kept before the oldest token in flight; prefill lookahead moves it back."""
        return self.sliding_window - 1 + max(0, limits.num_lookahead_tokens - 1)

    def max_blocks(self, limits: RequestLimits) -> int:
        """The engines' bound: the most tokens held, and a block more for a start inside one."""
        held = min(self._most_held(limits), limits.max_model_len)
        return cdiv(held, self.block_size) + 1

    def peak_blocks(self, limits: RequestLimits) -> int:
        """What is really reached: at worst the first token held is the last of its block. Where the
        request ends before that, its own blocks: a window never costs more than full attention."""
        last = self._most_held(limits) + self.block_size - 1
        return cdiv(min(last, limits.max_model_len), self.block_size)

    def _most_held(self, limits: RequestLimits) -> int:
        if limits.dcp > 1 and self.dcp_sharded:
            raise SpecError(f"a sliding window cannot be split over {limits.dcp} context ranks")
        return self._reach(limits) + limits.tokens_in_flight

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return num_indices(self.resident(num_tokens - 1, 1, limits)) if num_tokens else 0

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        """A full window and the block it starts in; where the window is never full, every token."""
        held = self._reach(limits) + 1
        if held >= limits.max_model_len:
            return super().steady_cost(limits)
        return cdiv(held - 1, self.block_size) + 1, 0.0

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        first = max(0, computed - self._reach(limits)) // self.block_size
        return one_run(first, cdiv(computed + new, self.block_size))

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm:
        """Like every token, until the window is full; then a block ends and another leaves."""
        size, full = self.block_size, self._reach(limits) + 1
        if in_flight:
            full = self._most_held(limits) + size - 1
        return rhythm((1, size), (full, size), edges=((1, size), (full, size)))

    def hit_length(self, cached: Sequence[bool]) -> int:
        """The next token sees W - 1 before it: only their blocks must be cached. From the end, the
        first run of that many; or, where the first blocks are cached, those."""
        needed, run = cdiv(self.sliding_window - 1, self.block_size), 0
        if not needed:
            return len(cached) * self.block_size
        for i in range(len(cached) - 1, -1, -1):
            run = run + 1 if cached[i] else 0
            if run == needed:
                return (i + needed) * self.block_size
        return run * self.block_size

    def promoted(self) -> KVCacheSpec:
        return self.retyped(FullAttentionSpec, remembers=self.bound)

    @classmethod
    def what_if(cls, spec: KVCacheSpec, options: Mapping[str, Any]) -> KVCacheSpec:
        window = option(cls.kind, options, "sliding_window")
        return spec.narrowed(Bound(sliding_window=window), cls)


PLUGIN = SlidingWindowSpec
