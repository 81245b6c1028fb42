"""Which block sizes attention kernels read whole. A block of more tokens is read as several of
these, if it can be split: `_kernel_blocks.py`."""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.layouts.base import LayoutChoice
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.allocation.placements import LETTERED


def whole_block_sizes(
    specs: Iterable[KVCacheSpec], layout: LayoutChoice, placement: str, any_size: bool
) -> tuple[int, ...]:
    """Tokens, ascending; (): any multiple of the block size. any_size: of a CPU's kernels."""
    if layout.kernel_block_size is not None:
        return (layout.kernel_block_size,)
    if any_size:
        return ()
    known = layout.candidates(movable=placement in LETTERED)
    attention = {spec for spec in specs if not spec.is_state}
    taking = [next((y for y in known if not y.refuses(spec)), None) for spec in attention]
    listed = [set(y.kernel_block_sizes) for y in taking if y is not None and y.kernel_block_sizes]
    return tuple(sorted(set.intersection(*listed))) if listed else ()
