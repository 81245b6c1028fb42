"""What a user may say about slots. Every default needs no thought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Objective = Literal["never_worse", "fewest_tables"]
BlockSizeRule = Literal["any", "powers_of_two"]
ForEngine = Literal["kvpipe", "vllm"]
SubSlotChoice = Literal["auto", "on", "off"]

PREFIX_GRAIN = 128  # tokens
TABLE_PRICE = 0.002  # of a request's bytes


@dataclass(frozen=True, kw_only=True)
class SlotOptions:
    """objective: never_worse than the engines compared, at any length and with no more tables; or
    fewest_tables, where only bytes and the price of tables count.

    table_price: what one block table costs, as a share of a request's bytes (a table is copied,
    sliced and read in every step). block_sizes: any multiple of the smallest, or powers of two of
    it. max_prefix_grain: tokens; prefixes are shared in common multiples of all tables' block
    sizes, which are kept at most so large. lengths: requests to weigh plans by, in tokens; (): a
    few from 1,024 up to the longest. for_engine: who serves from the plan; vllm: what its workers
    cannot take, pages of several sizes, is left out. subslots: small attention blocks share the
    slots that states force (`subslots.py`); no promise is made of these.
    """

    objective: Objective = "never_worse"
    table_price: float = TABLE_PRICE
    block_sizes: BlockSizeRule = "any"
    max_prefix_grain: int = PREFIX_GRAIN
    lengths: tuple[int, ...] = ()
    for_engine: ForEngine = "kvpipe"
    subslots: bool = False
