"""The ragged requests of the self-proof: admitted, prefilled in chunks and decoded by the manager.

Everything that is known of them afterwards is what `BlockManager` said: the slot of every token it
granted, and the block tables after the last step. A window's table holds the window, no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import TYPE_CHECKING, Any

from kvpipe.cache.plan import KVCacheConfig
from kvpipe.specs.base import RequestLimits

if TYPE_CHECKING:  # numpy, which the manager needs, comes with the memory that is proved
    from kvpipe.blocks import BlockManager

DECODE_STEPS = 4  # the last tokens of a request, one a step
GATHERED_TOKENS = 256  # of one request and group that is not written whole; at least two blocks


@dataclass(frozen=True, kw_only=True)
class ProofRequest:
    """A request of num_tokens stored tokens.

    tables: one a group, block index -> block id, of the blocks it holds. slots: one a group,
    position -> slot, of the tokens granted whose block it still holds. Under context parallelism
    positions count this rank's tokens.
    """

    num_tokens: int
    tables: tuple[dict[int, int], ...]
    slots: tuple[dict[int, int], ...]


def proof_requests(
    config: KVCacheConfig, limits: RequestLimits, num_requests: int, max_length: int, seed: int
) -> list[ProofRequest]:
    """As many as fit, one long and the others ragged, with shuffled block ids."""
    from kvpipe.blocks import BlockManager

    if not config.groups or not num_requests:  # a rank without layers
        return []
    manager = BlockManager(config, limits, max_num_requests=num_requests)
    shuffle_free_blocks(manager, seed)
    ceiling = max(1, min(limits.max_model_len, max_length))
    running = []
    for number, wanted in zip(range(num_requests), _wanted_lengths(config), strict=False):
        request = _Running(manager, number, min(wanted or ceiling, ceiling))
        # A long request leaves half of what is free to the others.
        spared = manager.pool.allocate(0 if wanted else manager.pool.num_free // 2)
        request.prefill(limits.max_num_batched_tokens)
        manager.pool.free(spared)
        if manager.num_tokens(number):
            running.append(request)
    _decode(manager, running)
    return [request.held() for request in running]


def shuffle_free_blocks(manager: BlockManager, seed: int) -> None:
    """All blocks are taken, and given back in any order, as after a day of requests."""
    import numpy as np

    # RandomState's numbers are promised to stay the same, whatever numpy's version.
    random = np.random.RandomState(seed % 2**32)
    manager.pool.free(random.permutation(manager.pool.allocate(manager.pool.num_free)))


def _wanted_lengths(config: KVCacheConfig) -> Iterator[int]:
    """One token past a block; then 0, as long as may be (so that windows slide); then 1, 2.5
    blocks, 3 tokens ... in turn, without end. In tokens."""
    blocks = [group.block_spec.block_size for group in config.groups if not group.spec.is_state]
    largest = max(blocks, default=4)
    return cycle((largest + 1, 0, 1, 2 * largest + largest // 2, 3, largest))


class _Running:
    """One live request of the manager, and the slots that it was granted."""

    def __init__(self, manager: BlockManager, number: int, wanted: int) -> None:
        manager.add_request(number)
        self.manager, self.number, self.wanted = manager, number, wanted
        self.decode_steps = min(DECODE_STEPS, wanted - 1)
        self._granted: list[dict[int, int]] = [{} for _ in manager.tables]

    def prefill(self, chunk: int) -> None:
        """Up to the tokens that are decoded, or to what fits. chunk: tokens a step, at most."""
        from kvpipe.blocks import OutOfBlocks

        while left := self.wanted - self.decode_steps - self.manager.num_tokens(self.number):
            computed = self.manager.num_tokens(self.number)
            self.manager.begin_step()
            try:
                self.manager.allocate(self.number, min(chunk, left))
            except OutOfBlocks:
                if chunk == 1:
                    return
                chunk = (min(chunk, left) + 1) // 2
            else:
                self.note(computed, min(chunk, left), 0)

    def note(self, computed: int, new: int, first: int) -> None:
        """Keep the slots of a step that brought `new` tokens. first: of the request's slots among
        the step's."""
        import numpy as np

        limits = self.manager.limits
        for group, granted in enumerate(self._granted):
            spec = self.manager.config.groups[group].block_spec
            written = spec.written(computed, new, limits)
            slots = self.manager.slot_mapping(group)[first : first + len(written)]
            span = spec.tokens_per_block(limits)
            index, offset = np.divmod(np.arange(written.start, written.stop), span)
            # Context parallel ranks keep one token each in turn.
            here = index * spec.block_size + offset // (span // spec.block_size)
            granted.update(_pairs(here[slots >= 0], slots[slots >= 0]))

    def held(self) -> ProofRequest:
        tables, slots = [], []
        for group, granted in enumerate(self._granted):
            (row,) = self.manager.block_table(group, [self.number]).tolist()
            table = {index: block for index, block in enumerate(row) if block >= 0}
            size = self.manager.config.groups[group].block_spec.block_size
            tables.append(table)
            slots.append({at: slot for at, slot in granted.items() if at // size in table})
        return ProofRequest(
            num_tokens=self.manager.num_tokens(self.number),
            tables=tuple(tables),
            slots=tuple(slots),
        )


def _pairs(positions: Any, slots: Any) -> Iterator[tuple[int, int]]:
    return zip(positions.tolist(), slots.tolist(), strict=True)


def _decode(manager: BlockManager, running: list[_Running]) -> None:
    """All requests together, one token a step, until each has its last or the pool is empty."""
    from kvpipe.blocks import OutOfBlocks

    for step in range(DECODE_STEPS):
        batch = [request for request in running if request.decode_steps > step]
        computed = [manager.num_tokens(request.number) for request in batch]
        if not batch:
            return
        manager.begin_step()
        try:
            manager.append([request.number for request in batch])
        except OutOfBlocks:
            return
        for first, (request, stored) in enumerate(zip(batch, computed, strict=True)):
            request.note(stored, 1, first)


def proof_positions(
    request: ProofRequest, group: int, block_size: int, max_tokens: int, seed: int
) -> list[int]:
    """Positions to write: all that the group holds; or, of some of its blocks (the first and the
    last among them), the edges and a sample of the rest."""
    held, random = sorted(request.slots[group]), Random(seed)
    if len(held) <= max_tokens:
        return held
    blocks = sorted({position // block_size for position in held})
    most = max(2, GATHERED_TOKENS // block_size)
    if len(blocks) > most:
        chosen = {blocks[0], blocks[-1], *random.sample(blocks[1:-1], most - 2)}
        held = [position for position in held if position // block_size in chosen]
    if len(held) <= max_tokens:
        return held
    edges = [p for p in held if p % block_size in (0, block_size - 1)]
    few = max_tokens // 4
    kept = {held[0], held[-1], *edges[:few], *edges[len(edges) - few :]}
    rest = [p for p in held if p not in kept]
    return sorted(kept | set(random.sample(rest, max(0, max_tokens - len(kept)))))
