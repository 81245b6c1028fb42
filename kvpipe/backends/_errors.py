"""The persistent record in which kernels count what was out of range, and the error it becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# enum Operation of kv_cache.cu -> how the first offender is told: {index} in the list given,
# {value} found there, {last} the largest legal value.
_TOLD = {
    1: "write_kv: slot_mapping[{index}] is slot {value}, the last one is {last}",
    2: "gather: block_table[{index}] is block {value}, the last one is {last}",
    3: "fill: block_ids[{index}] is block {value}, the last one is {last}",
    4: "copy_blocks: pair {index} names block {value}, the last one is {last}",
    5: "pack: block_ids[{index}] is block {value}, the last one is {last}",
    6: "unpack: block_ids[{index}] is block {value}, the last one is {last}",
    7: "slot_mapping: request_index[{index}] is request {value}, the last one is {last}",
    9: "attend: block_table[{index}] is block {value}, the last one is {last}",
    10: "attend: request {index} sees token {value}, the last one of its block table is {last}",
    8: "slot_mapping: positions[{index}] is token {value}, the block table ends at {last}",
}


class ErrorRecord:
    """int32[8] on the device: count, operation, index, value (2 words), limit (2 words), unused.

    Allocated once: a captured CUDA graph keeps its address.
    """

    def __init__(self, torch: Any, device: Any, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._record = torch.zeros(8, dtype=torch.int32, device=device)
        self.address = int(self._record.data_ptr())

    def check(self) -> None:
        """IndexError naming the first offender since the last check.

        On a GPU this waits for all streams before it reads, and again before it returns: a kernel
        of another stream may neither be missed nor count into a record that is being cleared."""
        self._synchronize()
        words = [word & 0xFFFFFFFF for word in self._record.tolist()]
        if not words[0]:
            return
        self._record.zero_()
        self._synchronize()
        value = _signed(words[3] | words[4] << 32)
        limit = _signed(words[5] | words[6] << 32)
        told = _TOLD[words[1]].format(index=words[2], value=value, last=limit - 1)
        raise IndexError(f"{told}; {words[0]} out of range since the last check")


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
