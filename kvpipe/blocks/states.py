"""Many blocks at once whose states are all alike, read and changed with few array operations.

A few ids take numpy longer to begin with than to do: states are compared as bytes, and what up to
_SHORT of them must be lies ready.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.checks import Ids

States = npt.NDArray[np.int32]

_INTP = np.dtype(np.intp)
# The bytes that carry the signs of an index array: all below 0x80 (ASCII) iff no id is negative.
_SIGNS = slice(7 if sys.byteorder == "little" else 0, None, 8)
_SHORT = 256
_ALIKE = [
    [np.full(n, word, np.int32).tobytes() for n in range(_SHORT + 1)] for word in range(4)
]  # by the word, then by how many
_STAMPS = [-1 - np.arange(n, dtype=np.int32) for n in range(_SHORT + 1)]
_STAMP_BYTES = [stamps.tobytes() for stamps in _STAMPS]


def read(states: States, ids: npt.NDArray[np.generic]) -> bytes:
    """The states of ids, as they lie in memory; nothing where one is foreign (`valid_ids` says
    which), or no id."""
    if ids.dtype is not _INTP or not ids.tobytes()[_SIGNS].isascii():
        return b""
    try:
        return states[ids].tobytes()
    except IndexError:
        return b""


def alike(before: bytes, word: int) -> bool:
    """Whether there are states, and all are this word."""
    num = len(before) // 4
    if num <= _SHORT:
        return num > 0 and before == _ALIKE[word][num]
    return before == np.full(num, word, np.int32).tobytes()


def turn(states: States, ids: Ids, before: bytes, after: int) -> bool:
    """Give blocks with these states another. Distinct stamps show an id that was named twice, of
    which only one can be read back: False, and nothing was done."""
    num = len(ids)
    if num <= _SHORT:
        stamps, expected = _STAMPS[num], _STAMP_BYTES[num]
    else:
        stamps = -1 - np.arange(num, dtype=np.int32)
        expected = stamps.tobytes()
    states[ids] = stamps
    distinct = states[ids].tobytes() == expected
    states[ids] = after if distinct else np.frombuffer(before, np.int32)
    return distinct
