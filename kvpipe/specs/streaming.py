"""StreamingLLM: a token sees the first S tokens and the last W (arXiv:2309.17453). A cache with a
hole: the blocks between the sinks and the window are free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs._geometry import option
from kvpipe.specs.base import KVCacheSpec, RequestLimits, cdiv
from kvpipe.specs.bounds import Bound
from kvpipe.specs.rhythm import Rhythm, rhythm
from kvpipe.specs.runs import Runs, joined
from kvpipe.specs.sliding import SlidingWindowSpec


@dataclass(frozen=True, kw_only=True)
class StreamingSpec(SlidingWindowSpec):
    """num_sink_tokens: S, the attention sinks. sliding_window: W, the token itself included.

    The arithmetic is a window's, and the blocks of the sinks beside it, which are always whole.
    """

    kind: ClassVar[str] = "streaming"
    takes_scaled_rows: ClassVar[bool] = False
    more_fields: ClassVar[tuple[str, ...]] = ("sliding_window", "num_sink_tokens")
    reads_cache_window: ClassVar[bool] = False

    num_sink_tokens: int

    def __post_init__(self) -> None:
        if self.num_sink_tokens < 1:
            raise SpecError("num_sink_tokens must be at least 1", got=f"{self.num_sink_tokens}")
        super().__post_init__()

    @classmethod
    def examples(cls) -> Sequence[Self]:
        sizes = ((3, 4, 5), (4, 1, 1), (16, 17, 9))
        return [
            cls.example(block, num_sink_tokens=sinks, sliding_window=window)
            for block, sinks, window in sizes
        ]

    @property
    def bound(self) -> Bound:
        return Bound(num_sink_tokens=self.num_sink_tokens, sliding_window=self.sliding_window)

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("streaming", self.num_sink_tokens, *super().type_key)

    @property
    def _sink_blocks(self) -> int:
        return cdiv(self.num_sink_tokens, self.block_size)

    def max_blocks(self, limits: RequestLimits) -> int:
        return self.peak_blocks(limits)  # no engine has a bound of its own

    def peak_blocks(self, limits: RequestLimits) -> int:
        """A window's worst, and the sinks; or all that the request has."""
        whole = cdiv(limits.max_model_len, self.block_size)
        return min(
            whole, cdiv(self._most_held(limits) - 1, self.block_size) + 1 + self._sink_blocks
        )

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        fixed, slope = super().steady_cost(limits)
        held = self._reach(limits) + 1 + self._sink_blocks * self.block_size
        if slope or held >= limits.max_model_len:
            return 1, 1 / self.block_size
        return fixed + self._sink_blocks, slope

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        stop = cdiv(computed + new, self.block_size)
        first = max(0, computed - self._reach(limits)) // self.block_size
        return joined(range(min(self._sink_blocks, stop)), range(first, stop))

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm:
        """A window's, which is full where it has left the sinks' blocks behind."""
        size, window = self.block_size, super().rhythm(limits, in_flight)
        full = self._reach(limits) + 1 + self._sink_blocks * size
        if in_flight:
            held = cdiv(self._most_held(limits) - 1, size) + 1 + self._sink_blocks
            full = held * size
        return rhythm((1, size), (full, size), edges=window.edges)

    def hit_length(self, cached: Sequence[bool]) -> int:
        """A window's, among the prefixes whose sinks are cached."""
        sinks = cached[: self._sink_blocks]
        return super().hit_length(cached if all(sinks) else cached[: sinks.index(False)])

    @classmethod
    def what_if(cls, spec: KVCacheSpec, options: Mapping[str, Any]) -> KVCacheSpec:
        asked = Bound(
            num_sink_tokens=option(cls.kind, options, "num_sink_tokens"),
            sliding_window=option(cls.kind, options, "sliding_window"),
        )
        return spec.narrowed(asked, cls)


PLUGIN = StreamingSpec
