"""The pool of block ids that all cache groups draw from.

Structure of arrays, never an object a block. B blocks; block 0 is the null block: never handed out,
so that a table may point at it where nothing is held. One word a block says everything:

    state <= 0   free, without content: on the stack
    state == 1   free, with keyed content: in eviction order, still a possible prefix hit
    state >= 2   in use: 2 * references + (1 if its content is keyed)

Free blocks without content are handed out first, then cached ones, least recently used first.
Every call checks before it changes: after a BlockError or OutOfBlocks nothing has moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvpipe.blocks import states
from kvpipe.blocks.checks import Ids, refuse_repeats, refuse_where, valid_ids
from kvpipe.blocks.errors import BlockError, OutOfBlocks
from kvpipe.blocks.eviction import EvictionOrder
from kvpipe.blocks.hashing import Key
from kvpipe.blocks.prefix_index import PrefixIndex
from kvpipe.blocks.stats import PoolStats

NULL_BLOCK = 0

_ONE_REFERENCE = 2
_KEYED = 1
_HELD = _ONE_REFERENCE | _KEYED
_new_id = np.zeros(1, np.intp).copy  # an array of one id: no other way to make one is as fast


class BlockPool:
    """num_blocks ids, 0 .. num_blocks - 1. 12 bytes a block; 22 once cached blocks were freed."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise BlockError(f"a pool needs at least the null block, got {num_blocks} blocks")
        self.num_blocks = num_blocks
        self.index = PrefixIndex()
        self._state = np.zeros(num_blocks, np.int32)
        self._stack = np.arange(num_blocks, dtype=np.intp)
        # The same memory, for one block at a time: several times as fast as numpy's scalars.
        self._state_of, self._stack_at = self._state.data, self._stack.data
        self._head = 1  # the stack's free ids are _stack[_head:]; id 0, the null block, is not
        self._cached = EvictionOrder(num_blocks)
        self._peak = 0
        self._freed = self._revived = self._shared = self._evicted = 0

    # --- counts ------------------------------------------------------------------------------
    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out."""
        return self.num_blocks - self._head + self._cached.count

    @property
    def num_cached_free(self) -> int:
        """Free blocks that are still possible prefix hits."""
        return self._cached.count

    @property
    def nbytes(self) -> int:
        """Bytes of the pool's arrays (the index of keyed content comes on top)."""
        return self._state.nbytes + self._stack.nbytes + self._cached.nbytes

    def stats(self) -> PoolStats:
        in_use = self.num_blocks - 1 - self.num_free
        return PoolStats(
            usable=self.num_blocks - 1,
            in_use=in_use,
            cached_free=self._cached.count,
            empty_free=self.num_blocks - self._head,
            keyed=len(self.index),
            peak_in_use=max(self._peak, in_use),
            allocated=in_use + self._freed - self._revived,
            freed=self._freed,
            shared=self._shared,
            evicted=self._evicted,
        )

    def references(self, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """[n] references of each block; 0 for a free one."""
        return np.maximum(self._state[np.asarray(ids, np.intp)], 0) >> 1

    def reclaimable(self, ids: npt.ArrayLike) -> int:
        """How many blocks would become free if each lost a reference as often as it is named."""
        blocks, times = np.unique(np.asarray(ids, np.intp), return_counts=True)
        return int(np.count_nonzero(self.references(blocks) == times))

    # --- taking ------------------------------------------------------------------------------
    def allocate(self, num: int) -> Ids:
        """[num] ids with one reference each and no content. OutOfBlocks if too few are free."""
        head = self._head
        stop = head + num
        if head < stop <= self.num_blocks:
            self._head = stop
            if num == 1:
                ids = _new_id()
                ids[0] = block = self._stack_at[head]
                self._state_of[block] = _ONE_REFERENCE
            else:
                ids = self._stack[head:stop].copy()
                self._state[ids] = _ONE_REFERENCE
            return ids
        if num == 1 and self._cached.count:
            return np.array([self.allocate_one()])
        return self._allocate_evicting(num)

    def allocate_one(self) -> int:
        """The same of a single block, as an int."""
        head = self._head
        if head < self.num_blocks:
            block: int = self._stack_at[head]
            self._head = head + 1
        elif self._cached.count:
            block = self._cached.pop_one()
            self.index.remove((block,))
            self._evicted += 1
        else:
            raise OutOfBlocks(1, 0)
        self._state_of[block] = _ONE_REFERENCE
        return block

    def _allocate_evicting(self, num: int) -> Ids:
        if num < 0:
            raise BlockError(f"cannot allocate {num} blocks")
        if num > self.num_free:
            raise OutOfBlocks(num, self.num_free)
        empty = min(num, self.num_blocks - self._head)
        ids = self._stack[self._head : self._head + empty].copy()
        self._head += empty
        if num > empty:
            evicted = self._cached.pop(num - empty)
            self.index.remove(evicted.tolist())
            self._evicted += len(evicted)
            ids = np.concatenate((ids, evicted)) if empty else evicted
        self._state[ids] = _ONE_REFERENCE
        return ids

    def share(self, ids: npt.ArrayLike) -> None:
        """One more reference for blocks in use, or free with keyed content (a prefix hit)."""
        ids = np.asarray(ids)
        if states.turned(self._state, ids, _KEYED, _HELD):
            self._cached.remove(ids)
            self._revived += len(ids)
            self._shared += len(ids)
            return
        ids = valid_ids(ids, self.num_blocks)
        state = self._state[ids]
        refuse_where(ids, state < _KEYED, "is free and has no content: it cannot be shared")
        refuse_repeats(ids)
        revived = ids[state == _KEYED]
        if len(revived):
            self._cached.remove(revived)
            self._revived += len(revived)
        self._state[ids] = state + _ONE_REFERENCE
        self._shared += len(ids)

    # --- giving back -------------------------------------------------------------------------
    def free(self, ids: npt.ArrayLike) -> None:
        """Drop one reference of each block. ids [n] in chain order: the last is evicted first, so
        that what is left of a cached chain is a prefix."""
        if type(ids) is np.ndarray and ids.dtype is states.INTP:
            if len(ids) == 1:
                self.free_one(ids.item())
                return
            if states.stamped(self._state, ids, _ONE_REFERENCE):
                self._push(ids)
                return
            if self._free_keyed(ids):
                return
        self._free_mixed(valid_ids(ids, self.num_blocks))

    def free_one(self, block: int) -> None:
        """The same of a single block."""
        if 0 < block < self.num_blocks and self._state_of[block] == _ONE_REFERENCE:
            self._state_of[block] = 0
            head = self._head - 1
            if head - self._cached.count > self._peak:
                self._peak = head - self._cached.count
            self._stack_at[head] = block
            self._head = head
            self._freed += 1
        else:
            self._free_mixed(valid_ids([block], self.num_blocks))

    def _free_keyed(self, ids: Ids) -> bool:
        """The same where each of ids has one reference and content of its own. False: nothing was
        done. Their places in eviction order show an id named twice."""
        if self.index.copies or not states.all_are(self._state, ids, _HELD):
            return False
        in_use = self._head - 1 - self._cached.count
        if not self._cached.append_distinct(ids[::-1]):
            return False
        if in_use > self._peak:
            self._peak = in_use
        self._state[ids] = _KEYED
        self._freed += len(ids)
        return True

    def _free_mixed(self, ids: Ids) -> None:
        state = self._state[ids]
        refuse_where(
            ids, state < _ONE_REFERENCE, "is not in use: it was freed twice, or never ours"
        )
        refuse_repeats(ids)
        left = state - _ONE_REFERENCE
        if self.index.copies:
            for i in (left == _KEYED).nonzero()[0][::-1].tolist():
                left[i] = _KEYED if self.index.leave(ids.item(i)) else 0
        self._state[ids] = left
        cached = ids[left == _KEYED][::-1]
        plain = ids[left == 0]
        self._push(plain)
        if len(cached):
            self._cached.append(cached)
            self._freed += len(cached)

    def _push(self, ids: Ids) -> None:
        head = self._head
        in_use = head - 1 - self._cached.count
        if in_use > self._peak:  # use peaks where it turns down: only freeing has to look
            self._peak = in_use
        self._head = start = head - len(ids)
        self._stack_at[start:head] = ids  # type: ignore[call-overload]  # a buffer, as of 3.12
        self._freed += len(ids)

    # --- content -----------------------------------------------------------------------------
    def register(self, ids: npt.ArrayLike, keys: Sequence[Key]) -> int:
        """Say what blocks in use hold, so that `lookup` finds them. A block that nobody holds and
        whose content one of ids holds too becomes empty; beside one in use, it stays a copy (see
        `PrefixIndex`). Returns for how many keys one of ids is found."""
        ids = np.asarray(ids)
        if not states.turned(self._state, ids, _ONE_REFERENCE, _HELD):
            ids = valid_ids(ids, self.num_blocks)
            state = self._state[ids]
            refuse_where(ids, state < _ONE_REFERENCE, "is not in use: it holds nothing to register")
            refuse_where(ids, state & _KEYED == 1, "already has a key")
            refuse_repeats(ids)
            self._state[ids] = state | _KEYED
        blocks = ids.tolist()
        if self.index.knows_any(keys):
            return sum(map(self._enter, blocks, keys))
        return self.index.enter_all(keys, blocks)

    def register_one(self, block: int, key: Key) -> None:
        """The same of a single block."""
        state = self._state_of[block]
        if state < _ONE_REFERENCE or state & _KEYED:
            self.register([block], [key])  # says what is wrong
        self._state_of[block] = state | _KEYED
        self._enter(block, key)

    def _enter(self, block: int, key: Key) -> bool:
        found = self.index.block_of(key)
        if found is None:
            self.index.enter(key, block)
        elif self._state_of[found] == _KEYED:
            self._make_empty(self.index.replaced(key, block))
        else:
            self.index.enter_copy(key, block)
            return False
        return True

    def _make_empty(self, block: int) -> None:
        """A free block whose content need not be kept any longer."""
        self._cached.remove_one(block)
        self._state_of[block] = 0
        self._head -= 1
        self._stack_at[self._head] = block

    def lookup(self, keys: Sequence[Key]) -> list[int | None]:
        """The block that holds each key's content, None where none does; references unchanged."""
        return self.index.lookup(keys)

    def forget_content(self) -> int:
        """Drop every key (the weights changed). Blocks in use stay so. Returns keys dropped."""
        dropped = len(self.index)
        self.index.clear()
        self._state[(self._state > 0) & (self._state & _KEYED == 1)] -= _KEYED
        idle = self._cached.pop(self._cached.count)
        start = self._head - len(idle)
        self._stack[start : self._head] = idle
        self._head = start
        return dropped
