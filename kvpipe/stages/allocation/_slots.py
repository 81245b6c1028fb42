"""A layer's share of a tensor, with its spec and group at hand."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.cache.plan import KVCacheConfig
from kvpipe.specs.base import KVCacheSpec


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Page of block b of `layer` at offset + b * block_stride in `buffer` (bytes)."""

    layer: str
    group: int
    spec: KVCacheSpec
    buffer: int
    offset: int
    block_stride: int
    num_blocks: int

    @property
    def packed(self) -> bool:
        """Pages lie side by side with nothing between them."""
        return self.block_stride == self.spec.page_size_bytes == self.spec.real_page_size_bytes

    @property
    def end(self) -> int:
        """First byte after the last page."""
        last = max(self.num_blocks - 1, 0) * self.block_stride
        return self.offset + last + self.spec.page_size_bytes


def layer_slots(config: KVCacheConfig) -> list[Slot]:
    """Every layer of every tensor, in the order of the tensors."""
    of_layer = {
        name: (index, group)
        for index, group in enumerate(config.groups)
        for name in group.layer_names
    }
    slots = []
    for buffer, tensor in enumerate(config.tensors):
        for pages in tensor.pages:
            index, group = of_layer[pages.layer]
            slots.append(
                Slot(
                    layer=pages.layer,
                    group=index,
                    spec=group.block_spec.of_layer(pages.layer),
                    buffer=buffer,
                    offset=pages.offset,
                    block_stride=pages.block_stride,
                    num_blocks=config.num_blocks * group.blocks_per_slot,
                )
            )
    return slots
