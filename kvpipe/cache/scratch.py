"""Scratch: where a step keeps what only its own queries read.

Of a prefill chunk a window layer stores what survives it (`KVCacheSpec.survives`). The rest of the
chunk, and the part of the window that the chunk pushes out, lies in slots that belong to the step:
layers run one after another, so each fills the same slots anew.

    a request's slot  | layer 0 | layer 1 | ... | layer m-1 |    one page of each layer
    a scratch slot    | page 0  | page 1  | ... | page m-1  |    pages of one layer at a time

A layer's pages are counted in units from its own page of slot 0, so that page s of scratch slot b
is entry  b * slot_units + s * pitch_units - shift(layer)  of its table, where its own page of a
request's slot b is  b * slot_units.  The tables of a group's layers differ by one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import ArrayView


@dataclass(frozen=True, kw_only=True)
class GroupScratch:
    """How the layers of one group use scratch slots.

    pages_per_slot: pages of any one of its layers that a slot holds. unit_bytes: what entries are
    counted in. slot_units, pitch_units: from one slot to the next, from one scratch page to the
    next. shifts: (layer, units from the start of a slot to its own page).
    """

    pages_per_slot: int
    unit_bytes: int
    slot_units: int
    pitch_units: int
    shifts: tuple[tuple[str, int], ...]

    def shift(self, layer: str) -> int:
        """KeyError for a layer of another group."""
        return dict(self.shifts)[layer]


def refuse_scratch(groups: Sequence[GroupScratch | None], reader: str) -> None:
    """ConfigError where a plan uses scratch, through which `reader` does not read."""
    if any(groups):
        raise ConfigError(
            Problem(
                "plan",
                f"one without scratch: {reader} reads blocks only",
                "one whose prefill chunks lie in scratch",
                "grouping.scratch=off, or plan(..., scratch=False)",
            )
        )


def in_units(
    view: ArrayView, scratch: GroupScratch, buffer_bytes: int, block_size: int
) -> ArrayView | None:
    """A layer's array with one place a unit, from its own page of slot 0 to the buffer's end. Where
    a slot is one page, its places are the blocks. None: its pages are not whole blocks, slot after
    slot."""
    unit, units = scratch.unit_bytes, scratch.slot_units
    if view.shape[1] != block_size:
        return None
    if units == 1:
        return view
    if view.strides[0] != unit * units:
        return None
    counts, (_, *strides) = view.shape[1:], view.strides
    last = sum((count - 1) * stride for count, stride in zip(counts, strides, strict=True))
    places = (buffer_bytes - view.offset - last - strides[-1]) // unit + 1
    return replace(view, shape=(places, *counts), strides=(unit, *strides))
