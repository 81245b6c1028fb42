"""Two tokens of one write with one slot: the last one is kept, on every device and thread count."""

from __future__ import annotations

from kvpipe.backends.base import Array

_FEW = 32  # up to here a Python set is faster than sorting


def last_of_each_slot(slots: Array) -> Array:
    """slots [T] int64, -1 (padding) where a later token has the same slot. Waits for no GPU."""
    if len(slots) < 2:
        return slots
    if slots.device.type == "cpu" and len(slots) <= _FEW:
        written = [slot for slot in slots.tolist() if slot >= 0]
        if len(set(written)) == len(written):
            return slots
    ordered, tokens = slots.sort(stable=True)
    kept = ordered[:-1].where(ordered[:-1] != ordered[1:], -1)
    return slots.clone().scatter_(0, tokens[:-1], kept)
