"""Moving blocks of one group inside the bound memory, and out of it and back.

    mover = BlockMover(buffers)
    mover.copy(manager.append(batch))                 # before the step writes
    manager.swap_out("a", mover.save)
    manager.swap_in("a", mover.restore)

A manager block is one or several kernel blocks of each array of each layer of its group. Other
groups' arrays lie over the same bytes and are left alone: a block id is one group's at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvpipe.blocks.checks import Ids
from kvpipe.blocks.request import BlockCopy

if TYPE_CHECKING:
    from kvpipe.backends.base import Array
    from kvpipe.cache.buffers import KVBuffers
    from kvpipe.layouts.base import ArrayView


@dataclass(frozen=True)
class BlockMover:
    """buffers: of the rank whose manager names the blocks; on a backend that owns memory."""

    buffers: KVBuffers

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Do what a grant of the manager asks for."""
        pairs_of: dict[int, list[tuple[int, int]]] = {}
        for one in copies:
            pairs_of.setdefault(one.group, []).append((one.src, one.dst))
        for group, pairs in pairs_of.items():
            for ids, views in self._views(group):
                sources = _kernel_blocks(np.array([src for src, _ in pairs]), ids)
                targets = _kernel_blocks(np.array([dst for _, dst in pairs]), ids)
                both = list(zip(sources, targets, strict=True))
                self.buffers.backend.copy_blocks(self.buffers.buffers, views, both)

    def save(self, group: int, blocks: Ids) -> list[Array]:
        """The content of those blocks of a group in host memory."""
        return [
            self.buffers.backend.pack(self.buffers.buffers, views, _kernel_blocks(blocks, ids))
            for ids, views in self._views(group)
        ]

    def restore(self, group: int, blocks: Ids, saved: Sequence[Array]) -> None:
        """Put what `save` returned into as many other blocks of the group."""
        for (ids, views), packed in zip(self._views(group), saved, strict=True):
            listed = _kernel_blocks(blocks, ids)
            self.buffers.backend.unpack(self.buffers.buffers, views, listed, packed)

    def _views(self, group: int) -> list[tuple[Held, list[ArrayView]]]:
        """The arrays of a group's layers, by which of their blocks make up a manager block."""
        by_ids: dict[Held, list[ArrayView]] = {}
        addresses = self.buffers.addresses
        for layer in addresses.layers:
            for view in layer.views if layer.group == group else ():
                ids = view.kernel_ids(addresses.blocks_of(group))
                by_ids.setdefault((ids.held, ids.apart), []).append(view)
        return sorted(by_ids.items(), key=lambda item: item[0])


Held = tuple[int, int]  # kernel blocks of a block, and ids from one block to the next


def _kernel_blocks(blocks: Ids, ids: Held) -> list[int]:
    """The kernel blocks that manager blocks are made of, in order."""
    held, apart = ids
    expanded: list[int] = (blocks[:, None] * apart + np.arange(held)).ravel().tolist()
    return expanded
