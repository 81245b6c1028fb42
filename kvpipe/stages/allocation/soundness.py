"""Proof that an AddressMap is sound: no byte belongs to two different block ids, and none to two
layers of one group. Groups may overlay each other: a block id belongs to one group at a time.

Every array is cut into lanes: block b of a lane is the run [start + b * stride, + length). Lanes
that touch must have one stride and lie together within one cell of it, so that block b of either
is inside cell b:

    cell 0            cell 1            cell 2
    [ lane A  | .. ]  [ lane A  | .. ]  [ ..           stride S, both within S bytes
    [ ..  lane B   ]  [ ..  lane B   ]  [ ..
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from kvpipe.cache.addresses import AddressMap, LayerAddresses
from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Runs of `length` bytes, one a block, `stride` bytes apart. Sorted by (buffer, start)."""

    layer: str
    buffer: int
    start: int
    stride: int
    length: int
    num_blocks: int

    @property
    def end(self) -> int:
        return self.start + max(self.num_blocks - 1, 0) * self.stride + self.length


def check_sound(addresses: AddressMap, placement: str = "") -> None:
    """ConfigError naming the first layers that would overwrite each other, or leave the buffer."""
    problem = (
        _outside(addresses)
        or _blocks_collide(lane for layer in addresses.layers for lane in lanes(layer, addresses))
        or _group_collides(addresses)
    )
    if problem:
        layouts = sorted({layer.layout for layer in addresses.layers})
        raise ConfigError(
            Problem(
                "placement",
                "pages that no two block ids share",
                f"{problem} (layout {', '.join(layouts)}, placement {placement})",
                "use placement=auto and layout=auto",
            )
        )


def lanes(layer: LayerAddresses, addresses: AddressMap) -> Iterator[Lane]:
    """Lanes of one layer, over manager blocks. An axis whose stride reaches past a block is outside
    the block axis: one lane for each of its steps."""
    for view in joined(layer.views):
        ids = view.kernel_ids(addresses.num_blocks)
        block, itemsize = view.strides[0] * ids.apart, DTYPE_BYTES[view.dtype]
        starts, length = [view.offset], itemsize + (ids.held - 1) * view.strides[0]
        for count, stride in zip(view.shape[1:], view.strides[1:], strict=True):
            if count > 1 and stride >= block:
                starts = [start + i * stride for start in starts for i in range(count)]
            else:
                length += (count - 1) * stride
        for start in starts:
            yield Lane(
                layer=layer.layer,
                buffer=view.buffer,
                start=start,
                stride=block,
                length=length,
                num_blocks=addresses.num_blocks if view.shape[0] else 0,
            )


def _blocks_collide(found: Iterable[Lane]) -> str:
    cell: Lane | None = None  # the first lane of the cluster that is being read
    reach = low_end = 0
    for lane in sorted(found, key=lambda lane: (lane.buffer, lane.start)):
        if lane.num_blocks < 1:
            continue
        if cell is None or lane.buffer != cell.buffer or lane.start >= reach:
            cell, reach, low_end = lane, lane.end, lane.start
        reach = max(reach, lane.end)
        low_end = max(low_end, lane.start + lane.length)
        alone = lane is cell and lane.num_blocks == 1
        if not alone and (lane.stride != cell.stride or low_end - cell.start > cell.stride):
            return f"block ids of {cell.layer} and {lane.layer} share bytes"
    return ""


def _group_collides(addresses: AddressMap) -> str:
    """Layers of one group hold the same block ids at once: their runs of block 0 must be disjoint
    (block b is the same picture, moved)."""
    by_group: dict[int, list[tuple[int, int, int, str]]] = defaultdict(list)
    for layer in addresses.layers:
        for view in joined(layer.views):
            held = view.kernel_ids(addresses.num_blocks).held
            by_group[layer.group] += [
                (view.buffer, start, start + length, layer.layer)
                for start, length in block_runs(view, range(held))
            ]
    for runs in by_group.values():
        runs.sort()
        for (buffer, _, end, one), (other_buffer, start, _, two) in zip(
            runs, runs[1:], strict=False
        ):
            if buffer == other_buffer and start < end:
                return f"{one} and {two} of one group share bytes"
    return ""


def _outside(addresses: AddressMap) -> str:
    for layer in addresses.layers:
        for lane in lanes(layer, addresses):
            if (
                lane.num_blocks
                and not 0 <= lane.start <= lane.end <= addresses.buffers[lane.buffer]
            ):
                size = addresses.buffers[lane.buffer]
                return f"{layer.layer} reaches byte {lane.end} of a buffer of {size}"
    return ""


def block_runs(view: ArrayView, blocks: Iterable[int]) -> list[tuple[int, int]]:
    """(start, length) of every run of bytes of some blocks (of the view's own dimension 0)."""
    shape, strides = list(view.shape[1:]), list(view.strides[1:])
    axes = sorted(zip(strides, shape, strict=True))
    length = DTYPE_BYTES[view.dtype]
    while axes and (axes[0][0] == length or axes[0][1] == 1):
        length *= axes.pop(0)[1]
    starts = [view.offset + block * view.strides[0] for block in blocks]
    for stride, count in reversed(axes):
        starts = [start + i * stride for start in starts for i in range(count)]
    return [(start, length) for start in starts] if prod(shape) else []


def joined(views: Sequence[ArrayView]) -> tuple[ArrayView, ...]:
    """K and V that lie side by side for every token and head, as one array of both contents."""
    if len(views) != 2 or not all(view.per_token for view in views):
        return tuple(views)
    k, v = views
    itemsize = DTYPE_BYTES[k.dtype]
    beside = v.offset == k.offset + k.shape[-1] * itemsize and v.strides == k.strides
    if not beside or k.shape[:-1] != v.shape[:-1]:
        return tuple(views)
    return (replace(k, shape=(*k.shape[:-1], k.shape[-1] + v.shape[-1])),)
