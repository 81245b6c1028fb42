"""K and V of one token and head in one row, with their own scales: so many bytes, all included.

Source: what the attention backends of vLLM 0.28.0, 0.30.0 and 0.32.0 say that they store: a float32
scale beside K and one beside V of every token and head (8 or 4 bits a number), or NVFP4 (4 bits a
number, one byte of scale for each 16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvpipe.errors import SpecError
from kvpipe.specs.packed_types import PACKED


@dataclass(frozen=True)
class _Side:
    """Of K, or of V: `numbers` are so many bytes; scale_bytes: beside all of them."""

    numbers: int
    num_bytes: int
    scale_bytes: int = 0


SCALED_ROWS: Mapping[str, _Side] = {
    "int8_per_token_head": _Side(1, 1, 4),
    "fp8_per_token_head": _Side(1, 1, 4),
    "int4_per_token_head": _Side(2, 1, 4),
    "nvfp4": _Side(*PACKED["nvfp4"]),
}


def row_bytes(word: str, head_size: int, head_size_v: int) -> int:
    """Bytes of a token and head, K and V. SpecError where a side is no whole number of groups."""
    side = SCALED_ROWS[word]
    wrong = [size for size in (head_size, head_size_v) if size % side.numbers]
    if wrong:
        raise SpecError(
            f"a head size that is a multiple of {side.numbers}, for {word}", f"{wrong[0]}"
        )
    groups = (head_size + head_size_v) // side.numbers
    return groups * side.num_bytes + 2 * side.scale_bytes
