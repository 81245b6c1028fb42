"""Block sizes where attention layers and states share one pool of blocks.

A state is one page whatever the block size, and all pages of the pool must be equal, so the block
of the attention layers grows until its page holds the largest state, and states are padded to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from kvpipe.specs.base import KVCacheSpec, cdiv


@dataclass(frozen=True, kw_only=True)
class SharedPool:
    """block_size: of attention layers. state_block_size: of states (None: unchanged).

    page_size_bytes: of both; state_bytes: of the largest state in it. derived: block_size is larger
    than what was asked for.
    """

    block_size: int
    state_block_size: int | None
    page_size_bytes: int
    state_bytes: int
    derived: bool


def share_pool(
    attention: Sequence[KVCacheSpec],
    states: Sequence[KVCacheSpec],
    *,
    asked: int | None,
    default: int = 16,
    alignment: int,
    mode: str,
    chunk_size: int,
    kernel_block: int = 1,
) -> SharedPool:
    """The one page size of both. attention, states: one rank's specs. asked: the user's block size,
    default: that of layers alone.

    alignment: tokens a kernel block is a multiple of. chunk_size: tokens states are saved at, in
    mode `all`. kernel_block: tokens that the block is made a multiple of afterwards.
    """
    token_bytes = max(spec.with_block_size(1).page_size_bytes for spec in attention)
    state_bytes = max(spec.real_page_size_bytes for spec in states)
    if mode == "all":
        step = lcm(chunk_size, alignment)
        needed = step * cdiv(cdiv(state_bytes, token_bytes), step)
    else:
        needed = alignment * cdiv(state_bytes, alignment * token_bytes)
    block_size = max(asked or 0, kernel_block * cdiv(needed, kernel_block))
    return SharedPool(
        block_size=block_size,
        state_block_size=block_size if mode in ("align", "all") else None,
        page_size_bytes=block_size * token_bytes,
        state_bytes=state_bytes,
        derived=block_size != (asked or default),
    )
