"""Many blocks at once whose states are all alike, read and changed with few array operations.

A few ids take numpy longer to begin with than to do: states are compared as bytes, and what up to
_SHORT of them must be lies ready.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

States = npt.NDArray[np.int32]

INTP = np.dtype(np.intp)
# The bytes that carry the signs of an index array: all below 0x80 (ASCII) iff no id is negative.
_SIGNS = slice(7 if sys.byteorder == "little" else 0, None, 8)
_LOW = 0 if sys.byteorder == "little" else 3  # the byte of a word that says 0 to 255
_SHORT = 256
_WORDS = 4


def _patterns(num: int) -> tuple[list[bytes], States, bytes]:
    """Of num blocks: the bytes of their states where all are a word, by the word; distinct words
    below zero, and their bytes."""
    stamps = -1 - np.arange(num, dtype=np.int32)
    alike = [np.full(num, word, np.int32).tobytes() for word in range(_WORDS)]
    return alike, stamps, stamps.tobytes()


_SHORTS = [_patterns(num) for num in range(_SHORT + 1)]


def turned(states: States, ids: npt.NDArray[np.generic], after: Mapping[int, int]) -> int | None:
    """Give blocks that have one state, all the same, the one after it; the state that they had.
    None, and nothing was done: they differ, one is foreign (`valid_ids` says which) or named twice,
    or nothing comes after. Distinct stamps show an id named twice: only one can be read back."""
    if ids.dtype is not INTP or not ids.tobytes()[_SIGNS].isascii():
        return None
    try:
        before = states[ids].tobytes()
    except IndexError:
        return None
    num = len(ids)
    alike, stamps, stamp_bytes = _SHORTS[num] if num <= _SHORT else _patterns(num)
    word = before[_LOW] if num else -1
    then = after.get(word)
    if then is None or before != alike[word]:
        return None
    states[ids] = stamps
    if states[ids].tobytes() != stamp_bytes:
        states[ids] = word
        return None
    if then:  # below zero is free, too: the stamps may stay
        states[ids] = then
    return word
