"""Memory -> blocks -> tensors: two ways to lay groups over one pool of block ids.

tensors: as many as the longest group has layers; tensor i holds the i-th layer of each group.
one allocation: a block is as wide as the widest group; each group lays its layers over it anew.
Either way a block id belongs to one group at a time, so groups may overlay the same bytes.

32 layers of Llama-3.1-8B, 16 tokens a block, in 1 GiB (tests/test_grouping.py keeps this true):

    K and V of a token      2 x 8 heads x 128 x 2 B    =     4,096 B
    page                    16 tokens x 4,096 B        =    65,536 B   spec.page_size_bytes
    one block, all layers   32 x 65,536 B              = 2,097,152 B   bytes_per_block
    blocks                  2**30 B // 2,097,152 B     =       512     num_blocks, one of them null
    a request of 8,176      ceil(8,176 / 16)           =       511     blocks: it fits alone
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, LayerPages
from kvpipe.cache.scratch import GroupScratch
from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.stages.grouping._problems import refuse
from kvpipe.stages.grouping.scratch import SteppedDemand, group_scratch, stepped

Groups = Sequence[KVCacheGroupSpec]

SLOTS_OUTERMOST = "BLNHC"


def on_rank(groups: Groups, names: frozenset[str]) -> tuple[KVCacheGroupSpec, ...]:
    """Every group, with the layers of this rank only; a group may become empty and still counts."""
    kept = [tuple(name for name in group.layer_names if name in names) for group in groups]
    return tuple(
        replace(group, layer_names=mine, spec=group.spec.for_layers(mine))
        for group, mine in zip(groups, kept, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The groups of one rank over one pool. layout: axes of the one allocation, outermost first.
    in_slots: a block of any group is one slot, so that blocks are outermost. read_by_others: layers
    whose cache others read (None: prefill chunks use no scratch)."""

    groups: tuple[KVCacheGroupSpec, ...]
    rules: EngineRules
    layout: str
    in_slots: bool = False
    read_by_others: frozenset[str] | None = None

    @property
    def is_one_allocation(self) -> bool:
        return self.in_slots or self.rules.pool == "one_allocation"

    @property
    def axes(self) -> str:
        return SLOTS_OUTERMOST if self.in_slots else self.layout

    @cached_property
    def group_size(self) -> int:
        """Layers of the longest group here."""
        return max((len(group.layer_names) for group in self.groups), default=0)

    @property
    def is_uniform(self) -> bool:
        """One group whose layers have pages of their own sizes."""
        return len(self.groups) == 1 and self.groups[0].spec.sums_pages

    @property
    def is_empty(self) -> bool:
        """Nothing is stored here, although other ranks may store something."""
        return not self.group_size and not any(g.spec.sums_pages for g in self.groups)

    @cached_property
    def bytes_per_block(self) -> int:
        """Bytes of one block id across the pool of this rank."""
        if not self.groups:
            return 0
        if self.is_one_allocation:
            return max(group_bytes(group) for group in self.groups)
        page = self.groups[0].spec.page_size_bytes
        return page if self.is_uniform else page * self.group_size

    def num_blocks(self, memory: int) -> int | None:
        """Blocks that `memory` bytes hold; None: as many as one likes, nothing is stored here."""
        return max(0, memory) // self.bytes_per_block if self.bytes_per_block else None

    def config(self, num_blocks: int, with_tensors: bool = True) -> KVCacheConfig:
        """with_tensors False: the counts alone, for capacity lines."""
        tensors = self._one_allocation if self.is_one_allocation else self._tensors
        return KVCacheConfig(
            num_blocks=num_blocks,
            tensors=tensors(num_blocks) if self.groups and with_tensors else (),
            groups=self.groups,
            bytes_per_block=self.bytes_per_block,
            scratch=self.scratch,
        )

    @cached_property
    def scratch(self) -> tuple[GroupScratch | None, ...]:
        """One a group; () where no group uses scratch."""
        if self.read_by_others is None or not self.in_slots:
            return ()
        found = tuple(
            group_scratch(
                group,
                [(spec.page_size_bytes, names) for spec, names in layer_runs(group)],
                self.bytes_per_block,
                self.read_by_others,
            )
            for group in self.groups
        )
        return found if any(found) else ()

    def at_peak(self, limits: RequestLimits) -> SteppedDemand:
        """Blocks of one request in the step that holds most."""
        return stepped([group.spec for group in self.groups], self.scratch, limits)

    def _tensors(self, num_blocks: int) -> tuple[KVCacheTensor, ...]:
        if len(self.groups) == 1:
            group = self.groups[0]
            names = group.layer_names
            pages = [group.spec.page_size_bytes] * len(names)
            if self.is_uniform:
                pages = [group.layer_spec(name).page_size_bytes for name in names]
            return KVCacheTensor.each_alone(names, pages, num_blocks)
        page = self.groups[0].spec.page_size_bytes
        sharing = [
            [g.layer_names[i] for g in self.groups if i < len(g.layer_names)]
            for i in range(self.group_size)
        ]
        return tuple(
            KVCacheTensor(
                size_bytes=page * num_blocks,
                pages=tuple([LayerPages.one_a_block(name, page) for name in names]),
            )
            for names in sharing
        )

    def _one_allocation(self, num_blocks: int) -> tuple[KVCacheTensor, ...]:
        width = self.bytes_per_block
        if not width:
            return ()
        pages = [page for group in self.groups for page in self._overlay(group, num_blocks, width)]
        return (KVCacheTensor(size_bytes=width * num_blocks, pages=tuple(pages)),)

    def _overlay(self, group: KVCacheGroupSpec, num_blocks: int, width: int) -> list[LayerPages]:
        """The layers of one group from byte 0, spec by spec in order of appearance."""
        pages: list[LayerPages] = []
        per_layer = num_blocks if self.axes[0] == "L" else 1  # pages of a layer side by side
        start = 0
        for spec, names in layer_runs(group):
            page = spec.page_size_bytes // group.blocks_per_slot
            heads = _heads_apart(spec, self.axes)
            run = page * per_layer
            layer_stride = run if self.axes != "BHLNC" else page // heads
            block_stride = width // group.blocks_per_slot if self.axes[0] == "B" else page // heads
            head_stride = None
            if "H" in self.axes[:2]:
                head_stride = run // heads * (len(names) if self.axes == "BHLNC" else 1)
            pages += [
                LayerPages(
                    layer=name,
                    offset=start + i * layer_stride,
                    block_stride=block_stride,
                    layer_stride=layer_stride,
                    head_stride=head_stride,
                )
                for i, name in enumerate(names)
            ]
            start += run * len(names)
        return pages


def group_bytes(group: KVCacheGroupSpec) -> int:
    """Bytes that the pages of all layers of a group take in one block."""
    if group.spec.sums_pages:
        return group.spec.page_size_bytes
    return group.spec.page_size_bytes * len(group.layer_names)


def layer_runs(group: KVCacheGroupSpec) -> list[tuple[KVCacheSpec, list[str]]]:
    """The stored layers of a group by spec, both in order of appearance."""
    names = group.spec.stored_layers(group.layer_names)
    if not group.spec.sums_pages:
        return [(group.spec, list(names))] if names else []
    runs: dict[KVCacheSpec, list[str]] = {}
    for name in names:
        runs.setdefault(group.layer_spec(name), []).append(name)
    return list(runs.items())


def _heads_apart(spec: KVCacheSpec, layout: str) -> int:
    """Pieces of a page where heads lie outside layers or blocks; 1 where a page is one run."""
    if "H" not in layout[:2]:
        return 1
    heads = max(array.num_heads for array in spec.page_arrays())
    if heads > 1 and spec.page_size_bytes != spec.real_page_size_bytes:
        raise refuse(
            "placement",
            "layers and blocks outside heads, where pages are padded",
            f"{layout} with {spec.kind} pages of {heads} heads padded to "
            f"{spec.page_size_bytes:,} bytes",
            "choose placement=lbnhc",
            reference="AssertionError",
            stage="configs",
        )
    return heads


def check_pool(pool: Pool) -> None:
    """ConfigError where the engine's pool cannot hold these groups at all, whatever the memory."""
    if pool.is_empty and pool.groups and pool.rules.empty_rank == "refused":
        raise _empty_rank(pool)
    if pool.is_one_allocation and not pool.is_empty:
        pages = {spec.page_size_bytes for group in pool.groups for spec, _ in layer_runs(group)}
        if len(pages) > 1 and _cannot_mix(pool):
            raise refuse(
                "placement",
                "blocks outermost, then layers, where groups' pages differ in size",
                f"{pool.axes} with pages of {', '.join(f'{p:,}' for p in sorted(pages))} bytes",
                "choose placement=blnhc",
                reference="ValueError",
                stage="configs",
            )


def _cannot_mix(pool: Pool) -> bool:
    """Pages of several sizes need L and B outermost, and with several groups B first."""
    outermost = set(pool.axes[:2]) == {"L", "B"}
    return not outermost or (len(pool.groups) > 1 and pool.axes[0] != "B")


def _empty_rank(pool: Pool) -> Exception:
    if not pool.is_one_allocation or pool.axes[0] == "B":
        reference = "AssertionError"
    else:
        reference = "ValueError" if _cannot_mix(pool) else "ZeroDivisionError"
    return refuse(
        "parallel.pipeline_parallel_size",
        f"a layer that stores something on every rank (under engine={pool.rules.name})",
        "a rank without any",
        "use fewer stages, or engine=kvpipe",
        reference=reference,
        stage="configs",
    )
