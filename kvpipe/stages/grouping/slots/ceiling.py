"""What a request of one length may take: no more than under the plans compared.

Slots whose tables take more at least, however the layers are dealt, need not be searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.slots.baselines import Baseline
from kvpipe.stages.grouping.slots.guard import TELLING, Load, loads
from kvpipe.stages.grouping.slots.kinds import Life
from kvpipe.stages.grouping.slots.scale import Scale


class Ceiling(Scale):
    """weigh(life, tokens): blocks of one table. most_bytes: of one request."""

    def __init__(self, load: Load, length: int, most_bytes: int) -> None:
        super().__init__()
        self.load, self.length, self.most_bytes = load, length, most_bytes

    def _weigh(self, life: Life, tokens: int) -> int:
        return self.load.blocks(life.counted(tokens), self.length)

    def may_hold(self, lives: Sequence[Life], slot: int) -> bool:
        """False where no tables of this slot size take so few bytes."""
        return sum([self.fewest(life, slot) for life in lives]) * slot <= self.most_bytes

    def fewest(self, life: Life, slot: int) -> int:
        """Blocks, whichever its tables are."""
        return -(-self.least(life, slot) // slot)


def ceiling(baselines: Sequence[Baseline], load: Load, length: int) -> Ceiling:
    """No more than under each of these."""
    held = [
        sum(load.blocks(spec, length) for spec in base.specs) * max(base.slot_bytes)
        for base in baselines
    ]
    return Ceiling(load, length, min(held))


def ceilings(baselines: Sequence[Baseline], limits: RequestLimits) -> Iterator[Ceiling]:
    """Of requests that decode, at the lengths that tell most. (One token holds a block a table:
    that is asked of the number of tables.)"""
    decoding, *_ = loads(limits)
    for n in (*(n for n in TELLING if 1 < n < limits.max_model_len), limits.max_model_len):
        yield ceiling(baselines, decoding, n)
