"""Groups overlay each other's bytes: which layers split them at the same places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpipe.layouts.base import Layout
from kvpipe.stages.allocation._slots import Slot


def split_alike(slots: Sequence[Slot], chosen: Mapping[str, Layout | None]) -> set[str]:
    """Layers that may put K of all blocks before V: their pages fill their bytes side by side, and
    every layer that has any of these bytes splits them at the same places.

        page of block b:   K first  [k0 k1 k2 .. | v0 v1 v2 ..]
                           per page [k0 v0 | k1 v1 | ..]          a state can only lie so
    """
    alike: set[str] = set()
    for cluster in _overlapping(slots):
        splits = set()
        for slot in cluster:
            layout = chosen[slot.layer]
            order = layout.tensor_order if layout else "state"
            sizes = tuple(a.num_bytes(slot.spec.block_size) for a in slot.spec.page_arrays())
            splits.add((order, slot.offset, slot.num_blocks, slot.packed, sizes))
        if len(splits) == 1 and cluster[0].packed:
            alike |= {slot.layer for slot in cluster}
    return alike


def _overlapping(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Layers whose ranges of bytes overlap, directly or through others."""
    clusters: list[list[Slot]] = []
    reach = (-1, 0)  # buffer, end of the last cluster
    for slot in sorted(slots, key=lambda slot: (slot.buffer, slot.offset)):
        if slot.buffer != reach[0] or slot.offset >= reach[1]:
            clusters.append([])
            reach = (slot.buffer, 0)
        clusters[-1].append(slot)
        reach = (slot.buffer, max(reach[1], slot.end))
    return clusters
