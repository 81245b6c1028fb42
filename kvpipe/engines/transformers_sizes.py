"""transformers 5.24 continuous batching: bytes -> sectors that attention types share.

Source: `generation/continuous_batching/` of the wheel, run against this arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

ALIGNMENT = 128  # bytes
SPARE_SECTORS = 2  # that are written and never read


@dataclass(frozen=True, kw_only=True)
class Sector:
    """num_bytes: the least that whole blocks of every type fill. blocks: attention type -> blocks
    of it in a sector."""

    num_bytes: int
    blocks: Mapping[str, int]
    page: int

    @property
    def tokens(self) -> int:
        """Of the type with the most."""
        return max(self.blocks.values()) * self.page


def sector_of(block_bytes: Mapping[str, int], page: int) -> Sector:
    """block_bytes: attention type -> bytes of one block, a page of each of its layers."""
    size = lcm(*block_bytes.values(), ALIGNMENT)
    blocks = {name: size // each for name, each in block_bytes.items()}
    return Sector(num_bytes=size, blocks=blocks, page=page)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sizes of a step. hidden, vocab, heads, kv_heads, head_size: of one rank. activation: bytes
    of a number. decode_blocks: of the decode kernel's table (0: it is off)."""

    tokens: int
    requests: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_size: int
    activation: int = 2
    flash: bool = True
    sliced_logits: bool = True
    is_async: bool = True
    logprobs: bool = False
    decode_blocks: int = 32

    @property
    def copies(self) -> int:
        return 2 if self.is_async else 1

    @property
    def kv_width(self) -> int:
        heads = 2 * self.kv_heads if self.flash else 2 * self.heads + self.kv_heads
        return heads * self.head_size

    @property
    def logits(self) -> int:
        return self.hidden * self.activation + 4 * self.vocab

    def token_bytes(self, types: int) -> int:
        """Of one token of a step. types: of attention."""
        projected = (self.heads + 2 * self.kv_heads) * self.head_size
        wide = self.activation * (self.hidden + projected + self.kv_width)
        outputs = 2 if self.logprobs else 1
        tables = 28 + 4 * outputs + 4 * types * self.decode_blocks + 16 * types
        return max(0 if self.sliced_logits else self.logits, wide) + self.copies * tables


def num_sectors(available: int, sector: Sector, batch: Batch, windows: bool) -> int:
    """Sectors that requests may hold. windows: whether there is a mask of its own for them."""
    types = len(sector.blocks)
    cost = sector.num_bytes
    cost += sector.tokens * (batch.kv_width * batch.activation + 8 * batch.copies * types)
    fixed = SPARE_SECTORS * sector.num_bytes
    fixed += batch.requests * batch.logits if batch.sliced_logits else 0
    count = (available - fixed - batch.tokens * batch.token_bytes(types)) // cost
    if batch.flash or count <= 0:
        return max(0, count)
    masks = 2 if windows else 1

    def mask(sectors: int) -> int:
        width = sectors * sector.tokens + batch.tokens
        return batch.copies * masks * batch.activation * batch.tokens * width

    lost = -(-mask(count) // (cost + mask(count + 1) - mask(count)))
    return max(0, count - lost)
