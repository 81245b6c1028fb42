"""Which block holds the content of which key. A key names a whole prefix (see `hashing`).

The first block of a key stays its block; a second one with the same content is not indexed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class PrefixIndex:
    """key (bytes) <-> block id. Memory grows with the blocks that hold keyed content, only."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._block_of

    def lookup(self, keys: Iterable[bytes]) -> list[int | None]:
        """The block of each key, None where there is none."""
        return list(map(self._block_of.get, keys))

    def add(self, key: bytes, block: int) -> bool:
        """Whether the key was new, and block is now its block."""
        if self._block_of.setdefault(key, block) != block:
            return False
        self._key_of[block] = key
        return True

    def remove(self, blocks: npt.NDArray[np.intp] | Sequence[int]) -> None:
        """Forget the keys of these blocks."""
        for block in np.asarray(blocks).tolist():
            del self._block_of[self._key_of.pop(block)]

    def key_of(self, block: int) -> bytes | None:
        return self._key_of.get(block)
