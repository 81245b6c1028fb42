"""What is refused of the ids that a pool is given: foreign ones, and one named twice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvpipe.blocks.errors import BlockError

Ids = npt.NDArray[np.intp]


def valid_ids(ids: npt.ArrayLike, num_blocks: int) -> Ids:
    """ids as an index array of a pool's blocks; BlockError naming the first foreign one."""
    given = np.asarray(ids)
    array: Ids = given if given.dtype == np.intp else _as_ids(given)
    if len(array):
        low, high = array[array.argmin()], array[array.argmax()]
        if low < 1 or high >= num_blocks:
            wrong = low if low < 1 else high
            raise BlockError(
                "block 0 is the null block: it has no owner"
                if wrong == 0
                else f"block {wrong} is not one of this pool's 1..{num_blocks - 1}"
            )
    return array


def _as_ids(given: npt.NDArray[np.generic]) -> Ids:
    if given.size and given.dtype.kind not in "iu":
        raise BlockError(f"block ids are integers, got {given.dtype}")
    return given.astype(np.intp)


def refuse_where(ids: Ids, wrong: npt.NDArray[np.bool_], reason: str) -> None:
    if wrong.any():
        raise BlockError(f"block {ids[wrong.argmax()]} {reason}")


def refuse_repeats(ids: Ids) -> None:
    if len(ids) > 1 and len(set(ids.tolist())) < len(ids):
        distinct, counts = np.unique(ids, return_counts=True)
        raise BlockError(f"block {distinct[counts.argmax()]} is named twice in one call")
