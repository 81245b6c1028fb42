"""What a layer stores, and the questions every kind of cache answers about itself.

Symbols: L layers, B blocks, N tokens in a block (block_size), H KV heads on this rank, D head size.
block = unit of allocation; page = one layer's bytes in a block;
slot = block * block_size + position.
Nothing outside `specs/` asks what a spec *is*: it asks one of these questions.

Seven of them matter on the first day; the others have an answer already, and are read when needed:
`page_arrays` (what lies in a page), `resident` (which blocks must be there), `max_blocks` and
`steady_blocks` (how many that are), `hit_length` (which prefix another request may share), `merge`
(who shares a block table), `shard` (what one rank of several keeps). A spec proves its answers with
`examples` and `visible`: the tests walk them token by token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs._differing import differing
from kvpipe.specs.bounds import Bound
from kvpipe.specs.limits import RequestLimits, SpecContext, cdiv
from kvpipe.specs.page_array import DTYPE_BYTES, PageArray
from kvpipe.specs.rhythm import Rhythm
from kvpipe.specs.runs import Runs
from kvpipe.specs.stores import Stores

__all__ = [
    "DTYPE_BYTES",
    "CacheLayer",
    "KVCacheSpec",
    "PageArray",
    "RequestLimits",
    "SpecContext",
    "cdiv",
]


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec(ABC):
    """Geometry of one layer's cache on one rank. Frozen; every change is a new spec.

    page_size_padded: the page as allocated, in bytes, where it is larger than its content.
    """

    # The word used in config files and reports for this type ("full", "sliding", "mamba" ...).
    kind: ClassVar[str]
    # A fixed-size state, whatever the number of tokens: its page does not grow with block_size.
    is_state: ClassVar[bool] = False
    # False: the layer needs no block of any request (an encoder's).
    holds_blocks: ClassVar[bool] = True
    # A page of this spec is one page of each of its layers (UniformTypeKVCacheSpecs).
    sums_pages: ClassVar[bool] = False
    # Holds every token until the request ends, so that other attention layers may join its table.
    keeps_every_token: ClassVar[bool] = False
    # Stores one compressed row a token, from which K and V are computed.
    is_latent: ClassVar[bool] = False
    # An engine was read that keeps it in rows with scales of their own (scaled_rows.py).
    takes_scaled_rows: ClassVar[bool] = False

    # As a what-if it takes its window from cache.sliding_window (see conf/attention/sliding.yaml).
    reads_cache_window: ClassVar[bool] = False

    block_size: int
    page_size_padded: int | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise SpecError("block_size must be at least 1 token", got=f"{self.block_size}")
        if self.page_size_padded is not None and self.page_size_padded < self.real_page_size_bytes:
            raise SpecError(
                f"a padded page of at least the real {self.real_page_size_bytes:,} bytes",
                got=f"{self.page_size_padded:,} bytes",
            )

    @classmethod
    @abstractmethod
    def from_geometry(cls, geometry: Mapping[str, Any], context: SpecContext) -> Self:
        """The unsharded spec of a layer whose model file says `geometry` (see conf/model);
        SpecError naming an unknown, missing or wrong field."""

    @classmethod
    def what_if(cls, spec: KVCacheSpec, options: Mapping[str, Any]) -> KVCacheSpec:
        """`spec` turned into this type for `attention=<kind>`, or `spec` itself where that type
        cannot be asked of it (a state stays a state). SpecError naming a missing option."""
        raise SpecError(f"attention={cls.kind} is not offered as a what-if")

    # --- its proof: what tests hold the answers below to -----------------------------------------
    @classmethod
    def examples(cls) -> Sequence[KVCacheSpec]:
        """Two or three small instances, odd sizes among them. Tests walk each token by token; a
        registered spec without any is an error there."""
        return ()

    @abstractmethod
    def visible(self, query: int, limits: RequestLimits) -> Runs:
        """Positions, counted as `written` counts them, that token number `query` reads (its own
        included, where it reads that): as the paper defines it, whatever blocks hold it."""

    # --- bytes -------------------------------------------------------------------------------
    @abstractmethod
    def page_arrays(self) -> tuple[PageArray, ...]:
        """The arrays that share one page, in the order they lie in it."""

    # A spec never changes, so its page is computed once: grouping asks for it layer by layer.
    @cached_property
    def real_page_size_bytes(self) -> int:
        return sum(array.num_bytes(self.block_size) for array in self.page_arrays())

    @cached_property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or self.real_page_size_bytes

    def with_block_size(self, block_size: int) -> Self:
        """The same cache in blocks of block_size tokens, without padding; SpecError if illegal."""
        return replace(self, block_size=block_size, page_size_padded=None)

    def with_padded_page(self, page_size_bytes: int) -> Self:
        """The same cache in pages of exactly page_size_bytes; SpecError if they are too small."""
        return replace(self, page_size_padded=page_size_bytes)

    def shard(self, tp: int) -> Self:
        """This rank's part under tensor parallelism; SpecError naming the legal sizes."""
        return self

    # --- blocks of one request ------------------------------------------------------------------
    @abstractmethod
    def max_blocks(self, limits: RequestLimits) -> int:
        """Blocks an engine reserves for one request, by the engine's own bound; SpecError where
        the spec does not work under these limits."""

    def peak_blocks(self, limits: RequestLimits) -> int:
        """Exactly the most blocks that any step of one request holds (`resident`): `max_blocks`,
        unless that bound is another number."""
        return self.max_blocks(limits)

    @abstractmethod
    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        """Blocks one request of num_tokens holds while decoding, no prefill in flight."""

    @abstractmethod
    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        """Block indices of a request that must be held when `computed` tokens are stored and `new`
        are in flight: runs in ascending order, with a hole between any two (see `runs.joined`).
        Index i covers tokens [i * block_size, (i + 1) * block_size)."""

    def written(self, computed: int, new: int, limits: RequestLimits) -> range:
        """Positions whose slots a step fills that brings `new` tokens after `computed`. A block
        whose last position is among them is complete: its content may be shared from then on."""
        return range(computed, computed + new)

    def survives(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        """Block indices of which queries after this step may read, of those that it holds
        (`resident`): runs in ascending order. What a step brings besides is read by its own queries
        only, layer after layer, and need not be stored in a block of each layer."""
        if not self.frees_tokens:
            return self.resident(computed, new, limits)
        return self.resident(computed + new, 0, limits)

    def tokens_per_block(self, limits: RequestLimits) -> int:
        """Tokens of a request that one index of its table stands for."""
        return self.block_size

    @abstractmethod
    def hit_length(self, cached: Sequence[bool]) -> int:
        """Longest prefix, in tokens, that can be served when block i is cached iff cached[i].
        A multiple of block_size."""

    def caches_prefixes(self, limits: RequestLimits) -> bool:
        """Whether a full block stays as it is and can serve another request."""
        span = self.tokens_per_block(limits)
        return self.hit_length([True]) > 0 and self.written(span, 1, limits).start >= span

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        """(a, b): a request of n <= max_model_len tokens holds at most a + b * n blocks while
        decoding, no prefill in flight. Default: a block begun and every token."""
        return 1, 1 / self.tokens_per_block(limits)

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm | None:
        """How `peak_blocks` (in_flight) or `steady_blocks` go with the length of a request. None:
        not known, and such layers are then regrouped only where that needs no comparison."""
        return None

    def max_memory_bytes(self, limits: RequestLimits) -> int:
        """Bytes one request may hold in this layer."""
        return self.max_blocks(limits) * self.page_size_bytes

    # --- grouping ----------------------------------------------------------------------------
    def of_layer(self, name: str) -> KVCacheSpec:
        """The spec that one layer of a group with this spec allocates and binds with."""
        return self

    def for_layers(self, names: Sequence[str]) -> KVCacheSpec:
        """The spec of a group that on this rank has only the layers `names`."""
        return self

    def stored_layers(self, names: Sequence[str]) -> Sequence[str]:
        """Layers whose pages lie in a block of a group with this spec and these layers."""
        return names

    @property
    def is_replicated(self) -> bool:
        """Whether decode context parallelism leaves this cache whole on every rank."""
        return False

    @property
    def type_key(self) -> tuple[object, ...]:
        """Layers with equal keys may share a block table although their pages differ in size."""
        return (self.kind,)

    def same_type(self, other: KVCacheSpec) -> bool:
        """Whether `other` may join a table whose first layer has this spec."""
        return other.type_key == self.type_key

    def merge_problem(self, other: KVCacheSpec, ignore: frozenset[str] = frozenset()) -> str:
        """Why `other` cannot share this spec's group as if it were the same spec ("" if it can).
        ignore: field names an engine does not compare. Default: same class, all fields equal."""
        if type(other) is not type(self):
            return f"{other.kind} next to {self.kind}"
        return differing(self, other, ignore)

    def merge(
        self, others: Iterable[KVCacheSpec], ignore: frozenset[str] = frozenset()
    ) -> KVCacheSpec:
        """The one spec of a group whose first layer has this spec; SpecError says why not."""
        for other in others:
            if problem := self.merge_problem(other, ignore):
                raise SpecError(problem)
        return self

    # --- what it is to others, without a name ----------------------------------------------------
    @property
    def stores(self) -> Stores:
        return Stores(latent=self.is_latent, every_token=self.keeps_every_token)

    @property
    def frees_tokens(self) -> bool:
        """Whether blocks of a request are freed while it runs, since no query reads them again."""
        return bool(self.bound) and not self.keeps_every_token

    @property
    def leaves_a_hole(self) -> bool:
        """Whether what a late query reads is more than one run of tokens."""
        bound = self.bound or Bound()
        return self.frees_tokens and len(bound.visible(2 * sum(bound.sizes.values()))) > 1

    @property
    def is_plain_window(self) -> bool:
        """K and V of the last W tokens, and nothing else: the one bounded cache that engines turn
        into full attention by themselves, where a page can be neither divided nor padded."""
        bound = self.bound or Bound()
        return self.frees_tokens and not self.is_latent and list(bound.sizes) == ["sliding_window"]

    @property
    def splits_like_states(self) -> bool:
        """Whether packed groups are split as states are, until they are as narrow as the widest
        other one: a request holds the few blocks of a window, however long it grows."""
        return self.frees_tokens and (self.bound or Bound()).sliding_window is not None

    def own_fields(self) -> dict[str, object]:
        """By name what only this kind of spec has: what plan.json lists."""
        common = {field.name for field in fields(KVCacheSpec)}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in common}

    # --- what if: the same layer under another bound ---------------------------------------------
    @property
    def bound(self) -> Bound | None:
        """Which of the layer's own tokens a query reads. None: no what-if can change it (a state,
        the K and V of an encoder's output)."""
        return None

    def under(self, bound: Bound, form: type[KVCacheSpec]) -> KVCacheSpec:
        """This layer's cache under another bound, as `form` or what stands for it in its family
        (latent rows have forms of their own); itself where there is none."""
        return self

    def narrowed(self, asked: Bound, form: type[KVCacheSpec]) -> KVCacheSpec:
        """This layer reading no more than `asked`, never more than it does now; itself where it is
        bounded in another way already."""
        bound = self.bound.narrowed(asked) if self.bound is not None else None
        return self if bound is None else self.under(bound, form)

    def promoted(self) -> KVCacheSpec:
        """This cache keeping every token but remembering its bound, so that it can share the table
        of full attention layers; itself where it already does or where that makes no sense."""
        return self


@dataclass(frozen=True, kw_only=True)
class CacheLayer:
    """A named cache of a model layer. A model layer owns 0..n of them.

    shares_with: the name of the layer whose cache this one reads instead of storing its own.
    """

    name: str
    spec: KVCacheSpec
    shares_with: str | None = None
