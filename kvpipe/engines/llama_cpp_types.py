"""llama.cpp: how many bytes its cache types take, and which rows they can store.

Source: ggml of llama.cpp 0c1e57098: sizes of its blocks, of 32 numbers each.
"""

from __future__ import annotations

from typing import Literal

from kvpipe.specs.packed_types import PACKED

NUMBERS = 32  # of one block
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
_PLAIN = {"f32": 128, "f16": 64, "bf16": 64}
BLOCK_BYTES: dict[str, int] = {
    **_PLAIN,
    **{name: num_bytes for name, (numbers, num_bytes) in PACKED.items() if numbers == NUMBERS},
}
WHOLE = ("f32", "f16", "bf16")  # any width; the others store whole blocks


def is_quantised(name: str) -> bool:
    return name not in WHOLE


def row_bytes(numbers: int, name: str) -> int:
    """Bytes of `numbers` of one type; a quantised row is a whole number of blocks."""
    return numbers * BLOCK_BYTES[name] // NUMBERS


def stores(head_width: int, name: str) -> bool:
    """Whether rows of heads of that width can be of the type."""
    return not is_quantised(name) or head_width % NUMBERS == 0
