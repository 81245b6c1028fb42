"""The ragged requests of the self-proof, and the blocks they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.base import KVCacheConfig


@dataclass(frozen=True, kw_only=True)
class ProofRequest:
    """A request of num_tokens tokens. tables: one a group, block index -> block id, of the blocks
    that the group's spec says are held at the last token."""

    num_tokens: int
    tables: tuple[dict[int, int], ...]


def proof_requests(
    config: KVCacheConfig, limits: RequestLimits, num_requests: int, max_length: int, seed: int
) -> list[ProofRequest]:
    """As many as fit, one long and the others ragged, with shuffled block ids. Block 0 is the null
    block; an id belongs to one group and one request at a time."""
    random = Random(seed)
    free = config.num_blocks - 1
    lengths = []
    for wanted in _wanted_lengths(config, limits, num_requests, max_length, free):
        length = _longest(config, limits, wanted, free)
        if length:
            free -= sum(map(len, _held(config, limits, length)))
            lengths.append(length)
    used = sum(len(held) for n in lengths for held in _held(config, limits, n))
    ids = iter(random.sample(range(1, config.num_blocks), used) if used else [])
    return [
        ProofRequest(
            num_tokens=length,
            tables=tuple(
                {index: next(ids) for index in held} for held in _held(config, limits, length)
            ),
        )
        for length in lengths
    ]


def _wanted_lengths(
    config: KVCacheConfig, limits: RequestLimits, num_requests: int, max_length: int, free: int
) -> Iterator[int]:
    """One token past a block; then the longest that leaves half the pool (so that windows slide);
    then 1, 2.5 blocks, 3 tokens past ... in turn. In tokens."""
    blocks = [group.spec.block_size for group in config.groups if not group.spec.is_state]
    largest = max(blocks, default=4)
    ceiling = max(1, min(limits.max_model_len, max_length))
    ragged = (largest + 1, 0, 1, 2 * largest + largest // 2, 3, largest)
    for i in range(num_requests):
        wanted = ragged[i % len(ragged)]
        yield min(wanted, ceiling) if wanted else _longest(config, limits, ceiling, free // 2)


def _longest(config: KVCacheConfig, limits: RequestLimits, wanted: int, free: int) -> int:
    """The longest request up to `wanted` tokens whose blocks fit in `free` (0: none does)."""

    def fits(length: int) -> bool:
        return sum(map(len, _held(config, limits, length))) <= free

    if not config.groups or wanted < 1 or fits(wanted):
        return max(wanted, 0) if config.groups else 0
    low, high = 0, wanted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _held(config: KVCacheConfig, limits: RequestLimits, length: int) -> list[range]:
    """Block indices a group, while the last of `length` tokens is in flight. A rank without layers
    of a group keeps its table all the same."""
    return [group.spec.resident(length - 1, 1, limits) for group in config.groups]


def proof_positions(
    request: ProofRequest, group: int, block_size: int, max_tokens: int, seed: int
) -> list[int]:
    """Positions to write: all that the group holds, or edges of blocks and a sample of the rest.

    A group that holds blocks beyond the request's tokens (cross attention: the encoder's) is full.
    """
    table = request.tables[group]
    if not table:
        return []
    beyond = max(table) * block_size >= request.num_tokens
    end = (max(table) + 1) * block_size if beyond else request.num_tokens
    held = [
        position
        for index in sorted(table)
        for position in range(index * block_size, min((index + 1) * block_size, end))
    ]
    if len(held) <= max_tokens:
        return held
    edges = [p for p in held if p % block_size in (0, block_size - 1)]
    first = {held[0], held[-1], *edges[: max_tokens // 4], *edges[-(max_tokens // 4) :]}
    rest = [p for p in held if p not in first]
    return sorted(first | set(Random(seed).sample(rest, max(0, max_tokens - len(first)))))
