"""The six lettered placements: the axes L B H N C of one buffer, in the order of the letters.

C (the content of one token and head) is always innermost and never split. Where L and B are the
two outermost axes a page is one run of bytes; in lhbnc and bhlnc it is H runs.
"""

from __future__ import annotations

from dataclasses import replace

from kvpipe.cache.plan import KVCacheConfig
from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import PagePlace
from kvpipe.stages.allocation._slots import Slot, layer_slots

LETTERED = ("lbnhc", "lbhnc", "lhbnc", "blhnc", "blnhc", "bhlnc")
# In which a block of several layers is one run of bytes, so that its pages may differ in size.
SLOTTED = ("auto", "per_tensor", "blnhc", "blhnc")
PAGE_IN_RUNS = ("lhbnc", "bhlnc")  # pages that are not one run


def one_buffer(config: KVCacheConfig, placement: str) -> tuple[list[Slot], int]:
    """The layers' slots in one buffer, and its size in bytes.

    An engine that places layers itself (one tensor with strides) is taken at its word; otherwise
    tensor i of the plan becomes layer i of the buffer.
    """
    slots = layer_slots(config)
    if len(config.tensors) == 1 and len(config.tensors[0].pages) > 1:
        strides = {slot.block_stride for slot in slots}
        if placement[0] == "b" and config.num_blocks > 1 and strides != {config.bytes_per_block}:
            raise _refusal(placement, "a plan whose engine puts layers outside blocks")
        return slots, config.tensors[0].size_bytes
    sizes = {slot.spec.page_size_bytes for slot in slots}
    if len(sizes) > 1:
        raise _refusal(placement, f"pages of {', '.join(map(str, sorted(sizes)))} bytes")
    count = len(config.tensors)
    moved = [_moved(slot, placement, count, config.num_blocks) for slot in slots]
    return moved, sum(tensor.size_bytes for tensor in config.tensors)


def _moved(slot: Slot, placement: str, num_layers: int, num_blocks: int) -> Slot:
    page = slot.spec.page_size_bytes
    run = page // _heads(slot, placement)
    offset, block_stride = {
        "lb": (slot.buffer * num_blocks * page, page),
        "lh": (slot.buffer * num_blocks * page, run),
        "bl": (slot.buffer * page, num_layers * page),
        "bh": (slot.buffer * run, num_layers * page),
    }[placement[:2]]
    return replace(slot, buffer=0, offset=offset, block_stride=block_stride)


def _heads(slot: Slot, placement: str) -> int:
    """Runs of one page; refuses pages that cannot be cut into H equal runs."""
    if placement not in PAGE_IN_RUNS:
        return 1
    if slot.spec.is_state:
        raise _refusal(placement, f"the state of {slot.layer}, which is one run")
    heads = slot.spec.page_arrays()[0].num_heads
    if heads > 1 and slot.spec.page_size_bytes != slot.spec.real_page_size_bytes:
        raise _refusal(placement, f"padded pages of {slot.layer}")
    return heads


def lettered_place(slot: Slot, placement: str, kernel_block_size: int) -> PagePlace:
    """Where a layer's pages are: strides of L and B from the slot, of H and N from the letters."""
    place = PagePlace(
        layer=slot.layer,
        buffer=slot.buffer,
        offset=slot.offset,
        num_blocks=slot.num_blocks,
        block_size=slot.spec.block_size,
        kernel_block_size=kernel_block_size,
        order="B" + placement.strip("lbc").upper() + "KD",
        block_stride=slot.block_stride,
    )
    heads = _heads(slot, placement)
    if placement == "lhbnc" and heads > 1:
        return replace(place, order="HBNKD", block_stride=None)
    if placement == "bhlnc" and heads > 1:
        num_layers = slot.block_stride // slot.spec.page_size_bytes
        return replace(place, order="BHLNKD", block_stride=None, num_layers=num_layers)
    return place


def _refusal(placement: str, got: str) -> ConfigError:
    return ConfigError(
        Problem("placement", f"one page of one run a head and layer for {placement}", got, "auto")
    )
