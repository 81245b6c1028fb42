"""What a plan costs: bytes of requests of some lengths over the fewest they could take, and a price
for each table. Whole numbers, so that no order of layers changes a sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.stages.grouping.slots.kinds import Life
from kvpipe.stages.grouping.slots.options import SlotOptions
from kvpipe.stages.grouping.slots.scale import Scale, fewest_tables

ONE = 2**40  # a request's own bytes, or a price of 100%
GRID = (1024, 8192, 32768, 131072)
# Around each length of the grid: no block size divides these steps.
SPREAD = (-0.097, -0.071, -0.043, -0.019, 0.013, 0.037, 0.067, 0.091)


def lengths_to_weigh(limits: RequestLimits, asked: Sequence[int]) -> list[int]:
    """In tokens: those asked for, or some around each length of the grid and the longest."""
    longest = limits.max_model_len
    if asked:
        return [min(length, longest) for length in asked]
    grid = [length for length in GRID if length < longest] + [longest] * (longest < 2 * GRID[-1])
    return [max(1, min(longest, round(g * (1 + part)))) for g in grid for part in SPREAD]


class Weights(Scale):
    """weigh(life, tokens): what one table costs a byte of its slot. lower: bytes that no plan goes
    below, length by length (smallest blocks, no padding)."""

    def __init__(self, lives: Sequence[Life], limits: RequestLimits, options: SlotOptions) -> None:
        super().__init__()
        self.lives, self.limits, self.options = lives, limits, options
        self.price = round(ONE * options.table_price)
        self.lengths = lengths_to_weigh(limits, options.lengths)
        self.lower = [fewest_bytes(lives, n, limits) for n in self.lengths]
        self.tables: dict[Hashable, Any] = {}  # that were found already, for `partition`

    def _weigh(self, life: Life, tokens: int) -> int:
        spec, limits = life.counted(tokens), self.limits
        total = sum(
            spec.steady_blocks(n, limits) * ONE // max(1, lower)
            for n, lower in zip(self.lengths, self.lower, strict=True)
        )
        return total // len(self.lengths)

    def cost(self, specs: Sequence[KVCacheSpec], slot: int) -> int:
        """Of tables in these blocks, one slot each: their price included."""
        weight = sum(
            sum(spec.steady_blocks(n, self.limits) for spec in specs) * ONE // max(1, lower)
            for n, lower in zip(self.lengths, self.lower, strict=True)
        )
        return weight // len(self.lengths) * slot + len(specs) * self.price

    def least_cost(self, life: Life, slot: int) -> int:
        """That the tables of a life have, whichever they are: their price included."""
        return self.least(life, slot) + fewest_tables(life, slot) * self.price


def fewest_bytes(lives: Sequence[Life], length: int, limits: RequestLimits) -> int:
    """Steady bytes of a request in the smallest blocks of every kind, without any padding."""
    return sum(
        life.counted(life.sizes[0]).steady_blocks(length, limits) * life.width for life in lives
    )
