"""Kinds of layers, the blocks they may lie in, and lives: kinds that may share a block table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from kvpipe.errors import SpecError
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping.slots.options import BlockSizeRule

# Block sizes of a kind that are tried, at least: up to 512 tokens where 16 is the smallest.
MOST_SIZES = 32


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Which block sizes are open. quantum: tokens that each is a multiple of (None: each spec's own
    block; pages padded by hand then stay as they are). largest: in tokens (0: MOST_SIZES of them).
    more: tokens that other plans have. kernels: tokens that kernels take ((): any). whole: they
    take no block of several of these. The smallest is open always."""

    quantum: int | None = None
    rule: BlockSizeRule = "any"
    largest: int = 0
    more: frozenset[int] = frozenset()
    kernels: tuple[int, ...] = ()
    whole: bool = True

    def of(self, spec: KVCacheSpec) -> Mapping[int, KVCacheSpec]:
        """Tokens of a block -> the spec in such blocks, without padding."""
        return _in_blocks(self, spec)

    def is_read(self, tokens: int) -> bool:
        """Whether the kernels take such a block, or may take it for several of theirs."""
        if not self.kernels or tokens in self.kernels:
            return True
        return not self.whole and any(not tokens % size for size in self.kernels)

    def sizes(self, step: int, most: int) -> list[int]:
        """Multiples of step that the rule opens."""
        if self.rule == "any":
            few = [step * times for times in range(1, most + 1)]
            beyond = [t for t in self.more if t > few[-1] and not t % step]
            return few if self.largest else few + sorted(beyond)
        return [step << power for power in range(most.bit_length()) if 1 << power <= most]


@lru_cache(maxsize=256)  # a request's next length, batch or cards ask the same
def _in_blocks(blocks: Blocks, spec: KVCacheSpec) -> Mapping[int, KVCacheSpec]:
    if spec.is_state:
        bare = spec if blocks.quantum is None else replace(spec, page_size_padded=None)
        return {spec.block_size: bare}
    if blocks.quantum is None and _padded_by_hand(spec):
        return {spec.block_size: spec}
    step = blocks.quantum or spec.block_size
    most = max(MOST_SIZES, spec.block_size // step)
    if blocks.largest:
        most = max(1, min(most, blocks.largest // step))
    found: dict[int, KVCacheSpec] = {}
    for tokens in blocks.sizes(step, most):
        if found and not blocks.is_read(tokens):
            continue
        try:
            found[tokens] = spec.with_block_size(tokens)
        except SpecError:  # a row stands for several tokens
            continue
    return found


def _padded_by_hand(spec: KVCacheSpec) -> bool:
    """A page whose padding is no alignment of its own: it does not grow back."""
    return spec.page_size_padded is not None and (
        spec.with_block_size(spec.block_size).page_size_padded is None
    )


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Layers of one spec. count: on the rank that has most of them."""

    spec: KVCacheSpec
    count: int
    sizes: Mapping[int, KVCacheSpec]

    def page(self, tokens: int) -> int:
        """Bytes of one layer's page in blocks of so many tokens."""
        return self.sizes[tokens].page_size_bytes


@dataclass(frozen=True, kw_only=True)
class Life:
    """Kinds of one type, whose layers may lie in one table: they hold equally many blocks."""

    kinds: tuple[Kind, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Tokens of a block that all kinds may have, ascending."""
        first, *others = (kind.sizes for kind in self.kinds)
        return tuple(sorted(t for t in first if all(t in sizes for sizes in others)))

    def counted(self, tokens: int) -> KVCacheSpec:
        """The spec that says how many blocks a request holds."""
        return self.kinds[0].sizes[tokens]

    def all_layers(self, tokens: int) -> int:
        """Bytes of one block that holds every layer."""
        return self._all_layers[tokens]

    @cached_property
    def _all_layers(self) -> dict[int, int]:
        return {t: sum(kind.count * kind.page(t) for kind in self.kinds) for t in self.sizes}

    @cached_property
    def width(self) -> int:
        """The same of the smallest block."""
        return self.all_layers(self.sizes[0])

    @cached_property
    def narrowest(self) -> int:
        """Bytes of the smallest page of its first kind."""
        return self.kinds[0].page(self.sizes[0])

    @cached_property
    def is_fixed(self) -> bool:
        """Whether its blocks have one size, come what may."""
        return len(self.sizes) == 1

    def within(self, sizes: frozenset[int]) -> Life | None:
        """With these block sizes only; a fixed one as it is. None where none is left."""
        if self.is_fixed:
            return self
        kept = [
            replace(k, sizes={t: s for t, s in k.sizes.items() if t in sizes}) for k in self.kinds
        ]
        life = Life(kinds=tuple(kept))
        return life if life.sizes else None


def lives_of(ranks: Sequence[Mapping[str, KVCacheSpec]], blocks: Blocks) -> tuple[Life, ...]:
    """The kinds of all ranks' layers, by life, both in order of appearance; widest kind first."""
    most: dict[KVCacheSpec, int] = {}
    for layers in ranks:
        for spec, count in _counted(layers).items():
            most[spec] = max(most.get(spec, 0), count)
    lives: list[list[Kind]] = []
    for spec, count in most.items():
        kind = Kind(spec=spec, count=count, sizes=blocks.of(spec))
        home = next((life for life in lives if _may_join(life, kind)), None)
        if home is None:
            lives.append(home := [])
        home.append(kind)
    return tuple(Life(kinds=tuple(sorted(life, key=_width, reverse=True))) for life in lives)


def _counted(layers: Mapping[str, KVCacheSpec]) -> Counter[KVCacheSpec]:
    """Layers of each spec; equal specs are one object, which costs less to count by."""
    by_id = {id(spec): spec for spec in layers.values()}
    counts = Counter(map(id, layers.values()))
    return Counter({by_id[key]: count for key, count in counts.items()})


def _width(kind: Kind) -> tuple[int, int, str]:
    smallest = min(kind.sizes)
    return kind.count * kind.page(smallest), kind.page(smallest), repr(kind.spec)


def _may_join(life: Sequence[Kind], kind: Kind) -> bool:
    """Whichever of them comes first in a table. Blocks of one size are shared by no other size, and
    some size must be open to all of them, not only to each two."""
    common = set(kind.sizes).intersection(*(other.sizes for other in life))
    return bool(common) and all(
        (len(other.sizes) == 1) == (len(kind.sizes) == 1)
        and other.spec.same_type(kind.spec)
        and kind.spec.same_type(other.spec)
        for other in life
    )
