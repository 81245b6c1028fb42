"""Whether kernels read the blocks of groups as they are."""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.cache.plan import KVCacheGroupSpec


def are_read_whole(groups: Sequence[KVCacheGroupSpec], sizes: Sequence[int]) -> bool:
    """sizes: tokens of a block that kernels take (none: any)."""
    specs = [group.layer_spec(name) for group in groups for name in group.layer_names]
    return not sizes or all(spec.is_state or spec.block_size in sizes for spec in specs)
