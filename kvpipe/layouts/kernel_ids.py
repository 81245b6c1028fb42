"""Blocks of the manager in the ids of an attention kernel, whose own blocks are smaller.

A page is cut into kernel blocks that lie side by side. Where pages of other layers lie between, the
next block's first id is further away than the block has kernel blocks, as far as fit into a slot:

    slot of 10 kernel blocks, a layer with 5 of them   | 0 1 2 3 4 . . . . . | 10 11 12 13 14 . .
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any  # of integers, numpy's or torch's


@dataclass(frozen=True, kw_only=True)
class KernelIds:
    """held: kernel blocks of a block. apart: ids from one block's first to the next one's. rows:
    tokens of a kernel block (fewer where a row stands for several)."""

    held: int
    apart: int
    rows: int

    @property
    def are_dense(self) -> bool:
        """Whether every id is some block's: slots and tables then are the manager's own."""
        return self.held == self.apart

    @property
    def table_rows(self) -> int:
        """Rows behind one entry of `table`."""
        return self.held * self.rows if self.are_dense else self.rows

    def table(self, blocks: Array, steps: Array) -> Array:
        """[..., W] blocks -> the entries that kernels are given, [..., W * held] of them unless ids
        are dense; -1 for each of a block that is not held. steps: 0, 1 .. held - 1."""
        if self.are_dense:
            return blocks
        each = blocks[..., None]
        ids = (each * self.apart + steps + 1) * (each >= 0) - 1
        return ids.reshape(*blocks.shape[:-1], -1)

    def slots(self, slots: Array) -> Array:
        """[T] slots of the manager, in rows -> those of the kernel; below zero stays so."""
        if self.are_dense:
            return slots
        block, row = slots // (self.held * self.rows), slots % (self.held * self.rows)
        return (block * self.apart * self.rows + row + 1) * (slots >= 0) - 1
