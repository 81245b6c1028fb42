"""Many blocks at once whose states are all alike, read and changed with few array operations.

A few ids take numpy longer to begin with than to do: states are compared as bytes, and what up to
_SHORT of them must be lies ready.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

States = npt.NDArray[np.int32]

INTP = np.dtype(np.intp)
# The bytes that carry the signs of an index array: all below 0x80 (ASCII) iff no id is negative.
_SIGNS = slice(7 if sys.byteorder == "little" else 0, None, 8)
_SHORT = 256
_WORDS = 4


def _patterns(num: int) -> tuple[list[bytes], States, bytes]:
    """Of num blocks: the bytes of their states where all are a word, by the word; distinct words
    below zero, and their bytes."""
    stamps = -1 - np.arange(num, dtype=np.int32)
    alike = [np.full(num, word, np.int32).tobytes() for word in range(_WORDS)]
    return alike, stamps, stamps.tobytes()


_SHORTS = [_patterns(num) for num in range(_SHORT + 1)]


def all_are(states: States, ids: npt.NDArray[np.generic], word: int) -> bool:
    """Whether ids are index numbers of blocks that all have this state (0 to 3). A foreign id has
    none (`valid_ids` says which it is)."""
    if ids.dtype is not INTP or not ids.tobytes()[_SIGNS].isascii():
        return False
    num = len(ids)
    alike = (_SHORTS[num] if num <= _SHORT else _patterns(num))[0]
    try:
        before: bytes = states[ids].tobytes()
    except IndexError:
        return False
    return before == alike[word]


def stamped(states: States, ids: npt.NDArray[np.generic], word: int) -> bool:
    """Give blocks that all have this state distinct ones below zero, so: free. False, and nothing
    was done: not all have it, or one is named twice, whose stamps cannot both be read back."""
    if ids.dtype is not INTP or not ids.tobytes()[_SIGNS].isascii():
        return False
    num = len(ids)
    alike, stamps, stamp_bytes = _SHORTS[num] if num <= _SHORT else _patterns(num)
    try:
        if states[ids].tobytes() != alike[word]:
            return False
    except IndexError:
        return False
    states[ids] = stamps
    if states[ids].tobytes() == stamp_bytes:
        return True
    states[ids] = word
    return False


def turned(states: States, ids: npt.NDArray[np.generic], before: int, after: int) -> bool:
    """Give blocks that all have the one state the other, each once. False: nothing was done."""
    if not stamped(states, ids, before):
        return False
    states[ids] = after
    return True
