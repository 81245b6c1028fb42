"""What we race against: a pool of one object per block in a doubly linked list of free blocks.

The common design of serving engines: a block knows its neighbours, its references and its key; a
dictionary finds blocks by key. Written here from that description, as plainly as it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Block:
    __slots__ = ("block_id", "key", "next", "previous", "references")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.references = 0
        self.key: bytes | None = None
        self.previous: Block | None = None
        self.next: Block | None = None


class FreeList:
    """Oldest first; a block can leave from the middle in constant time."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.head, self.tail = Block(-1), Block(-1)
        self.head.next, self.tail.previous = self.tail, self.head
        self.count = 0
        self.extend(blocks)

    def extend(self, blocks: Iterable[Block]) -> None:
        last = self.tail.previous
        assert last is not None
        for block in blocks:
            last.next, block.previous = block, last
            last = block
            self.count += 1
        last.next, self.tail.previous = self.tail, last

    def pop(self, num: int) -> list[Block]:
        taken, block = [], self.head.next
        for _ in range(num):
            assert block is not None
            taken.append(block)
            following = block.next
            block.previous = block.next = None
            block = following
        assert block is not None
        self.head.next, block.previous = block, self.head
        self.count -= num
        return taken

    def remove(self, block: Block) -> None:
        assert block.previous is not None and block.next is not None
        block.previous.next, block.next.previous = block.next, block.previous
        block.previous = block.next = None
        self.count -= 1


class LinkedListPool:
    def __init__(self, num_blocks: int) -> None:
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.free_list = FreeList(self.blocks[1:])
        self.block_of: dict[bytes, Block] = {}

    def allocate(self, num: int) -> list[Block]:
        if num > self.free_list.count:
            raise ValueError(f"{num} blocks needed, {self.free_list.count} free")
        blocks = self.free_list.pop(num)
        for block in blocks:
            if block.key is not None:
                del self.block_of[block.key]
                block.key = None
            assert block.references == 0
            block.references = 1
        return blocks

    def free(self, blocks: Iterable[Block]) -> None:
        chain = list(blocks)
        for block in chain:
            block.references -= 1
        self.free_list.extend([block for block in chain if block.references == 0])

    def share(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.references == 0:
                self.free_list.remove(block)
            block.references += 1

    def register(self, blocks: Sequence[Block], keys: Sequence[bytes]) -> None:
        for block, key in zip(blocks, keys, strict=True):
            block.key = key
            self.block_of[key] = block

    def longest_hit(self, keys: Iterable[bytes]) -> list[Block]:
        hit = []
        for key in keys:
            block = self.block_of.get(key)
            if block is None:
                break
            hit.append(block)
        return hit


class LinkedListRequests:
    """Full attention over that pool: a list of blocks a request, one decode token at a time."""

    def __init__(self, pool: LinkedListPool, block_size: int) -> None:
        self.pool, self.block_size = pool, block_size
        self.blocks: dict[str, list[Block]] = {}
        self.num_tokens: dict[str, int] = {}

    def allocate(self, request: str, num_new_tokens: int) -> list[Block]:
        """Blocks for the next tokens, as an engine asks for them in every step of every request."""
        held = self.blocks.setdefault(request, [])
        stored = self.num_tokens.get(request, 0) + num_new_tokens
        missing = -(-stored // self.block_size) - len(held)
        if missing > self.pool.free_list.count:
            raise ValueError("out of blocks")
        new = self.pool.allocate(missing) if missing > 0 else []
        held.extend(new)
        self.num_tokens[request] = stored
        return new

    def decode(self, requests: Sequence[str]) -> list[int]:
        """A step of one token a request: the slots that it writes."""
        size, slots = self.block_size, []
        for request in requests:
            self.allocate(request, 1)
            position = self.num_tokens[request] - 1
            slots.append(self.blocks[request][-1].block_id * size + position % size)
        return slots
