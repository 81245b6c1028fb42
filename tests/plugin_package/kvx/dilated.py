"""attention=kvx_dilated: a token reads W tokens, S apart: a bound that kvpipe does not know."""

from dataclasses import dataclass
from typing import ClassVar

from kvpipe.errors import SpecError
from kvpipe.specs.attention import AttentionSpec, longest_run_hit
from kvpipe.specs.base import cdiv
from kvpipe.specs.bounds import Bound
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.runs import joined, num_indices


@dataclass(frozen=True, kw_only=True)
class Dilated(Bound):
    dilation: int | None = None

    def visible(self, query):
        first = query - (self.sliding_window - 1) * self.dilation
        positions = range(first, query + 1, self.dilation)
        return joined(*(range(at, at + 1) for at in positions if at >= 0))


@dataclass(frozen=True, kw_only=True)
class DilatedSpec(AttentionSpec):
    """A block holds one of the tokens at least: so every block back to the first is kept."""

    kind: ClassVar[str] = "kvx_dilated"
    more_fields: ClassVar[tuple[str, ...]] = ("sliding_window", "dilation")

    sliding_window: int
    dilation: int

    def __post_init__(self):
        if not 1 <= self.dilation <= self.block_size:
            raise SpecError(f"dilation must be 1 to {self.block_size}, got {self.dilation}")
        super().__post_init__()

    @classmethod
    def examples(cls):
        sizes = ((3, 3, 2), (4, 1, 4), (16, 5, 7))
        return [cls.example(b, sliding_window=w, dilation=d) for b, w, d in sizes]

    @property
    def bound(self):
        return Dilated(sliding_window=self.sliding_window, dilation=self.dilation)

    @property
    def type_key(self):
        return (self.kind, self.bound, self.dcp_sharded)

    def _reach(self, limits):
        return (self.sliding_window - 1) * self.dilation + max(0, limits.num_lookahead_tokens - 1)

    def max_blocks(self, limits):
        last = self._reach(limits) + limits.tokens_in_flight + self.block_size - 1
        return cdiv(min(last, limits.max_model_len), self.block_size)

    def resident(self, computed, new, limits):
        first = max(0, computed - self._reach(limits)) // self.block_size
        return joined(range(first, cdiv(computed + new, self.block_size)))

    def steady_blocks(self, num_tokens, limits):
        return num_indices(self.resident(num_tokens - 1, 1, limits)) if num_tokens else 0

    def steady_cost(self, limits):
        reach = self._reach(limits)
        if reach + 1 >= limits.max_model_len:
            return super().steady_cost(limits)
        return cdiv(reach, self.block_size) + 1, 0.0

    def hit_length(self, cached):
        size, reach = self.block_size, (self.sliding_window - 1) * self.dilation
        needed = (i - cdiv(min(reach, i * size), size) for i in range(len(cached) + 1))
        return longest_run_hit(cached, needed) * size

    def promoted(self):
        return self.retyped(FullAttentionSpec, remembers=self.bound)

    @classmethod
    def what_if(cls, spec, options):
        asked = Dilated(sliding_window=options["sliding_window"], dilation=options["dilation"])
        return spec.narrowed(asked, cls)
