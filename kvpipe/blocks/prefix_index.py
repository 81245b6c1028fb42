"""Which block holds the content of which key. A key names a whole prefix (see `hashing`).

Several blocks may hold the same content, when requests computed it side by side. One of them is
found; the others, all in use, are its copies, and one takes its place when nobody holds it any
more. So content is found as long as a block holds it, and no idle block holds what another holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from kvpipe.blocks.hashing import Key


class PrefixIndex:
    """key <-> block ids. copies: of a key, the blocks in use that are not found. Memory
    grows with the blocks that held keyed content, only."""

    def __init__(self) -> None:
        self._block_of: dict[Key, int] = {}
        # Of found blocks and of copies. An evicted block's stays until it gets another.
        self._key_of: dict[int, Key] = {}
        self.copies: dict[Key, list[int]] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, key: Key) -> bool:
        return key in self._block_of

    def lookup(self, keys: Iterable[Key]) -> list[int | None]:
        """The block of each key, None where there is none."""
        return list(map(self._block_of.get, keys))

    def block_of(self, key: Key) -> int | None:
        return self._block_of.get(key)

    def key_of(self, block: int) -> Key | None:
        key = self._key_of.get(block)
        if key is None or block not in (self._block_of.get(key), *self.copies.get(key, ())):
            return None
        return key

    # --- entering --------------------------------------------------------------------------------
    def knows_any(self, keys: Sequence[Key]) -> bool:
        return not self._block_of.keys().isdisjoint(keys)

    def enter(self, key: Key, block: int) -> None:
        """block is found by key from now on, whatever was before."""
        self._block_of[key] = block
        self._key_of[block] = key

    def enter_all(self, keys: Sequence[Key], blocks: Sequence[int]) -> int:
        """The same for keys that are all unknown; how many different ones they are."""
        before = len(self._block_of)
        self._block_of.update(zip(keys, blocks, strict=True))
        self._key_of.update(zip(blocks, keys, strict=True))
        new = len(self._block_of) - before
        if new < len(keys):  # a key was named twice: its last block is the one that is found
            for key, block in zip(keys, blocks, strict=True):
                if self._block_of[key] != block:
                    self.copies.setdefault(key, []).append(block)
        return new

    def enter_copy(self, key: Key, block: int) -> None:
        """block, in use, holds what another block in use is found for."""
        self._key_of[block] = key
        self.copies.setdefault(key, []).append(block)

    # --- leaving ---------------------------------------------------------------------------------
    def leave(self, block: int) -> bool:
        """Nobody holds block any more. False: another block holds the same content, this one is
        forgotten; True: it stays the one that is found."""
        key = self._key_of[block]
        copies = self.copies.get(key)
        if copies is None:
            return True
        if self._block_of[key] == block:
            self._block_of[key] = copies.pop()
        else:
            copies.remove(block)
        if not copies:
            del self.copies[key]
        del self._key_of[block]
        return False

    def remove(self, blocks: Sequence[int]) -> None:
        """Forget the keys of these blocks, none of which has a copy."""
        keys = list(map(self._key_of.__getitem__, blocks))  # left there until the next content
        deque(map(self._block_of.__delitem__, keys), maxlen=0)

    def replaced(self, key: Key, block: int) -> int:
        """block is found by key from now on; the block that was, which is forgotten."""
        old = self._block_of[key]
        del self._key_of[old]
        self.enter(key, block)
        return old

    def clear(self) -> None:
        self._block_of.clear()
        self._key_of.clear()
        self.copies.clear()
