"""Whether attention kernels read the blocks of groups in slots.

A kernel that takes certain block sizes reads a block of more tokens as several of its own. Other
layers' pages lie between one block and the next, so the slot must be a whole number of the layer's
kernel blocks: then one stride counts them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping.slots.stages import slot_bytes

Groups = Sequence[KVCacheGroupSpec]


def are_read_whole(groups: Groups, sizes: Sequence[int]) -> bool:
    """sizes: tokens of a block that kernels take (none: any)."""
    specs = [group.layer_spec(name) for group in groups for name in group.layer_names]
    return not sizes or all(spec.is_state or spec.block_size in sizes for spec in specs)


def are_read(
    groups: Groups, ranks: Sequence[Mapping[str, KVCacheSpec]], sizes: Sequence[int]
) -> bool:
    """Whole, or in kernel blocks that divide the slot, on every rank."""
    if are_read_whole(groups, sizes):
        return True
    slots = [slot for slot in set(slot_bytes(groups, ranks)) if slot]
    specs = {group.layer_spec(name) for group in groups for name in group.layer_names}
    return all(spec.is_state or _is_read(spec, slots, sizes) for spec in specs)


def _is_read(spec: KVCacheSpec, slots: Sequence[int], sizes: Sequence[int]) -> bool:
    if spec.block_size in sizes:
        return True
    return any(
        not spec.block_size % size and not any(slot % num_bytes for slot in slots)
        for size in sizes
        if (num_bytes := _kernel_bytes(spec, size))
    )


def _kernel_bytes(spec: KVCacheSpec, tokens: int) -> int:
    """Of a kernel block of a layer; 0 where rows stand for more tokens than it has."""
    arrays = spec.page_arrays()
    if any(tokens % array.tokens_per_row for array in arrays):
        return 0
    return sum(array.num_bytes(tokens) for array in arrays)
