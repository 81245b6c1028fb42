"""How a report speaks of sub-slots: figures count whole slots, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpipe.cache.plan import KVCacheGroupSpec, Plan
from kvpipe.text.figures import count


def block_cell(group: KVCacheGroupSpec) -> str:
    """Tokens of a block, and how many of them share a slot where several do: `16 x 101`."""
    own = f"{group.block_spec.block_size:,}"
    return own if group.blocks_per_slot == 1 else f"{own} x {group.blocks_per_slot:,}"


def subslot_lines(plan: Plan) -> Iterator[str]:
    """A line a group in sub-slots, then what its figures promise."""
    parted = [(i, g) for i, g in enumerate(plan.groups) if g.blocks_per_slot > 1]
    for index, group in parted:
        yield (
            f"a slot holds {count(group.blocks_per_slot, 'block')} of group {index}, of "
            f"{count(group.block_spec.block_size, 'token')} each, whichever requests they are of"
        )
    if parted:
        yield (
            "all figures here count whole slots, which holds whatever came before; what sub-slots "
            "bring beyond them, kvpipe replay measures (grouping.subslots=auto)"
        )


def in_document(group: KVCacheGroupSpec) -> dict[str, Any]:
    """Of a group in sub-slots: its blocks; their bytes are those of one table entry."""
    if group.blocks_per_slot == 1:
        return {}
    page = group.spec.page_size_bytes
    whole = page if group.spec.sums_pages else page * len(group.layer_names)
    return {
        "subslots": {
            "blocks_per_slot": group.blocks_per_slot,
            "block_size": group.block_spec.block_size,
            "block_bytes": whole // group.blocks_per_slot,
        }
    }
