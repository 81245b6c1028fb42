"""One layer's pages counted as scratch counts them, for steps that keep part of a chunk there.

In such a step a layer copies what the chunk pushes out of its window, writes every token where its
own table says, and gathers through that table: see `blocks/scratch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvpipe.cache.scratch import GroupScratch, in_units
from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import ArrayView
from kvpipe.layouts.kernel_ids import KernelIds
from kvpipe.stages.binding.transformers_cache._layers import PagedArrays
from kvpipe.stages.binding.transformers_cache._store import GatherTable, PagedStore

MOST_SLOTS = 2**31  # of tokens in a view, to count them in 32 bits


class ScratchedArrays(PagedArrays):
    """`write` and `read` as ever, of slots and tables in the units of the group's scratch."""

    def __init__(
        self, store: PagedStore, layer: str, head_sizes: tuple[int, int], scratch: GroupScratch
    ) -> None:
        self._scratch, self._shift = scratch, scratch.shift(layer)
        super().__init__(store, layer, head_sizes)

    def _placed(self, views: Sequence[ArrayView]) -> tuple[ArrayView, ...]:
        return tuple(self._in_units(view) for view in views)

    def _kernel_ids(self, view: ArrayView) -> KernelIds:
        """Units of scratch, each a page."""
        return KernelIds(held=1, apart=1, rows=view.shape[1])

    def _in_units(self, view: ArrayView) -> ArrayView:
        whole = self.store.buffers.buffers[view.buffer].num_bytes
        placed = in_units(view, self._scratch, whole, self.block_size)
        if placed is None or placed.shape[0] * placed.shape[1] >= MOST_SLOTS:
            raise ConfigError(
                Problem(
                    "grouping.scratch",
                    f"pages of whole blocks, slot after slot, of at most {MOST_SLOTS:,} places",
                    f"others in {self.layer}",
                    "grouping.scratch=off",
                )
            )
        return placed

    @property
    def in_use(self) -> bool:
        """Whether this step keeps anything of the group in scratch."""
        return self.store.step is not None and self.store.manager.scratch.used_by(self.group)

    def save_pushed_out(self) -> None:
        """Copy the pages whose blocks tokens of this step take over. Before anything is written."""
        if pairs := self.store.manager.scratch.copies(self.group, self._shift):
            self.store.backend.copy_blocks(self.store.buffers.buffers, self.views, pairs)

    def slots(self) -> Any:
        """[T'] slots of the step's real tokens, row by row."""
        import torch

        slots = self.store.manager.step_slots(self.group).of_layer(self._shift)
        return torch.from_numpy(slots).to(self.store.device)

    def table(self, first: int, stop: int) -> GatherTable:
        """Where columns [first, stop) of every row lie."""
        entries = self.store.manager.step_table(self.group, self.store.rows)
        return self.store.table_of(self.group, entries.of_layer(self._shift), first, stop)
