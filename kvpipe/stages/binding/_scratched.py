"""The part of the self-proof that runs steps: chunks of prompts whose layers take turns in scratch.

Step by step, and in a step layer by layer, as an engine runs them: pages that the chunk pushes out
are copied, the chunk's rows are written, and all that its queries may read is read back, by the
backend's gather and by byte offsets. A row names its layer, array, request and position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import KVCacheConfig
from kvpipe.cache.scratch import GroupScratch, in_units
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES, RequestLimits
from kvpipe.stages.binding._pieces import repeated
from kvpipe.stages.binding._readings import reader
from kvpipe.stages.binding._writings import write_tokens
from kvpipe.stages.binding.base import AttentionLayer
from kvpipe.stages.binding.served_requests import shuffle_free_blocks

if TYPE_CHECKING:
    from kvpipe.blocks import BlockManager

STEPS = 3  # the first fills windows, the second pushes them out, the third finds what is left


@dataclass(frozen=True, kw_only=True)
class ScratchProof:
    """rows: written and read back, of each way of reading. mismatches: of both."""

    rows: int = 0
    mismatches: int = 0


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """One array's turn in a step. first: the first position that is read back: of a window, with
    the rest of the block that it begins in."""

    view: ArrayView  # as the plan has it
    placed: ArrayView  # in units
    shift: int
    number: int  # of the array among all
    group: int
    first: int
    computed: int
    new: int


def prove_scratch(
    layers: Mapping[str, AttentionLayer],
    config: KVCacheConfig,
    buffers: KVBuffers,
    limits: RequestLimits,
    longest: int,
    seed: int,
) -> ScratchProof:
    """longest: tokens of the request, at most. Arrays whose pages are split into kernel blocks, as
    no layer here reads through scratch, are left out. Leaves the buffers as it found them."""
    from kvpipe.blocks import BlockManager

    manager = BlockManager(config, limits, max_num_requests=1)
    shuffle_free_blocks(manager, seed)
    manager.add_request(0)
    rows = wrong = 0
    touched: set[int] = set()
    for computed, new in _chunks(manager, min(longest, limits.max_model_len)):
        touched.update(manager.scratch.slots)
        for turn in _turns(layers, manager, buffers, computed, new):
            touched.update(manager.block_ids(0, turn.group).tolist())
            found, off = _run(turn, manager, buffers)
            rows, wrong = rows + found, wrong + off
    buffers.backend.check()
    _clean(buffers, config, sorted(touched))
    return ScratchProof(rows=rows, mismatches=wrong)


def _chunks(manager: BlockManager, longest: int) -> Iterator[tuple[int, int]]:
    """(stored, new) of each step that fits."""
    from kvpipe.blocks import OutOfBlocks

    chunk = min(manager.limits.max_num_batched_tokens, max(1, longest // STEPS))
    for _ in range(STEPS):
        computed = manager.num_tokens(0)
        while chunk:
            manager.begin_step()
            try:
                manager.allocate(0, chunk)
            except OutOfBlocks:
                chunk //= 2
            else:
                break
        if not chunk:
            return
        yield computed, chunk


def _turns(
    layers: Mapping[str, AttentionLayer],
    manager: BlockManager,
    buffers: KVBuffers,
    computed: int,
    new: int,
) -> Iterator[_Turn]:
    number = 0
    for group, scratch in enumerate(manager.scratch.groups):
        spec = manager.config.groups[group].spec
        if scratch is None:
            continue
        held = spec.resident(computed, new, manager.limits)[-1]
        for name in (name for name, _ in scratch.shifts if name in layers):
            for view in layers[name].views:
                number += 1
                whole = buffers.buffers[view.buffer].num_bytes
                placed = in_units(view, scratch, whole, spec.block_size)
                if placed is not None:
                    yield _Turn(
                        view=view,
                        placed=placed,
                        shift=scratch.shift(name),
                        number=number,
                        group=group,
                        first=min(held.start * spec.block_size, computed),
                        computed=computed,
                        new=new,
                    )


def _run(turn: _Turn, manager: BlockManager, buffers: KVBuffers) -> tuple[int, int]:
    """Rows read back, and how many of both readings were not what belongs there."""
    import numpy as np

    _write(turn, manager, buffers)
    size = turn.placed.shape[1]
    seen = np.arange(turn.first, turn.computed + turn.new)
    table = manager.step_table(turn.group, [0])
    indices = slice(turn.first // size, (turn.computed + turn.new - 1) // size + 1)
    expected = _names(turn, seen)
    found = _gathered(turn, table.of_layer(turn.shift)[0, indices], len(seen), buffers)
    wrong = int((found != expected).any(axis=1).sum())
    places = table.values[0, indices], table.aside[0, indices]
    scratch = manager.scratch.groups[turn.group]
    assert scratch is not None, "a turn is of a group that uses scratch"
    return len(seen), wrong + _wrong_in_memory(turn, places, scratch, buffers, expected)


def _write(turn: _Turn, manager: BlockManager, buffers: KVBuffers) -> None:
    """What leaves the blocks is copied first, then the step's rows are written."""
    import numpy as np
    import torch

    if pairs := manager.scratch.copies(turn.group, turn.shift):
        buffers.backend.copy_blocks(buffers.buffers, [turn.placed], pairs)
    written = np.arange(turn.computed, turn.computed + turn.new)
    device = buffers.buffers[turn.placed.buffer].data.device
    new = torch.from_numpy(_names(turn, written)).to(device)
    slots = manager.step_slots(turn.group).of_layer(turn.shift).tolist()
    write_tokens(turn.placed, new, slots, buffers)


def _gathered(turn: _Turn, entries: Any, num_rows: int, buffers: KVBuffers) -> Any:
    """[num_rows, bytes of a row] uint8, through a layer's own table, from `turn.first` on."""
    import numpy as np
    import torch

    buffer, size = buffers.buffers[turn.placed.buffer], turn.placed.shape[1]
    skipped = turn.first % size
    ids = torch.from_numpy(entries.astype(np.int32)).to(buffer.data.device)
    rows = buffers.backend.gather(buffer, turn.placed, ids, skipped + num_rows, size)[skipped:]
    return rows.contiguous().view(torch.uint8).reshape(num_rows, -1).cpu().numpy()


def _names(turn: _Turn, positions: Any) -> Any:
    """[n, bytes of a row] uint8: what is written at each position."""
    import numpy as np

    heads, width = turn.view.shape[2:]
    row = heads * width * DTYPE_BYTES[turn.view.dtype]
    names = np.stack([np.full_like(positions, turn.number), positions * 2654435761 + 97], axis=1)
    flat = names.astype("<i8").view(np.uint8).reshape(len(positions), 16)
    return np.ascontiguousarray(repeated(flat, row))


def _wrong_in_memory(
    turn: _Turn,
    places: tuple[Any, Any],
    scratch: GroupScratch,
    buffers: KVBuffers,
    expected: Any,
) -> int:
    """Rows of some positions that the bytes of memory do not hold: counted from the start of the
    buffer, by the plan's own view for blocks, by the slot's first byte for scratch."""
    read, view = reader(buffers.buffers), turn.view
    size, (_, token_stride, head_stride, item) = view.shape[1], view.strides
    skipped, wrong = turn.first // size, 0
    for at in sorted({*range(0, len(expected), size), len(expected) - 1}):
        index, offset = divmod(turn.first + at, size)
        units, aside = (int(each[index - skipped]) for each in places)
        start = view.offset + units // scratch.slot_units * view.strides[0]
        if aside:
            start += (units % scratch.slot_units - turn.shift) * scratch.unit_bytes
        start += offset * token_stride
        width = view.shape[3] * item
        got = b"".join(
            read(view.buffer, start + head * head_stride, width) for head in range(view.shape[2])
        )
        wrong += got != expected[at].tobytes()
    return wrong


def _clean(buffers: KVBuffers, config: KVCacheConfig, slots: list[int]) -> None:
    """Every byte of those slots as it was before anything was written."""
    for scratch, group in zip(config.scratch, config.groups, strict=True):
        if scratch is not None and scratch.slot_units == 1:  # K and V may lie apart
            for array in buffers.arrays(group.layer_names[0]).values():
                array[slots] = _unused(array, buffers.init_byte)
        elif scratch is not None:
            (buffer,) = buffers.buffers
            whole = config.num_blocks * config.bytes_per_block
            places = buffer.data[:whole].reshape(config.num_blocks, -1)
            places[slots] = buffers.init_byte


def _unused(array: Any, byte: int) -> Any:
    """One number whose bytes are all `byte`."""
    import torch

    one = torch.full((array.element_size(),), byte, dtype=torch.uint8, device=array.device)
    return one.view(array.dtype)
