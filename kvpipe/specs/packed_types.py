"""Types of a cache whose numbers share scales: so many numbers are so many bytes, scales included.

Sources: ggml of llama.cpp at 0c1e57098 (blocks of 32 numbers, of which each has one or two scales
of 16 bits); NVFP4 as TensorRT-LLM's cache managers count it (4 bits a number, and for each 16 of
them a scale of 8 bits). int8 is a word of engines whose scales are not a token's; nobody here plans
it, and each engine refuses it by name. Rows with scales of their own: scaled_rows.py.
"""

from __future__ import annotations

from collections.abc import Mapping

# name -> (numbers, bytes) of one block
PACKED: Mapping[str, tuple[int, int]] = {
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
    "nvfp4": (16, 9),
}
PER_TOKEN_HEAD = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
WORDS = (*PACKED, *PER_TOKEN_HEAD, "int8")


def packed_bytes(numbers: int, name: str) -> int:
    """Of a row of whole blocks."""
    of, num_bytes = PACKED[name]
    return -(-numbers // of) * num_bytes
