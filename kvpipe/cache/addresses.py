"""Where every byte of a rank's cache lies: integers only, so that it stands in plan.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from kvpipe.layouts.base import ArrayView, NativeView


@dataclass(frozen=True, kw_only=True)
class LayerAddresses:
    """Where one layer's arrays lie.

    group: index into KVCacheConfig.groups. layout: a layout's name, or "state" for arrays that no
    layout orders. native: None where no single tensor describes it."""

    layer: str
    group: int
    layout: str
    attention_backend: str
    views: tuple[ArrayView, ...]
    native: NativeView | None


@dataclass(frozen=True, kw_only=True)
class GroupAddresses:
    """Per group: sizes in tokens. A kernel block is what an attention kernel calls a block; it
    divides the manager's block_size. blocks_per_slot: of the group's, in one block of the pool."""

    block_size: int
    kernel_block_size: int
    layouts: tuple[str, ...]
    attention_backends: tuple[str, ...]
    page_size_bytes: int
    blocks_per_slot: int = 1


@dataclass(frozen=True, kw_only=True)
class AddressMap:
    """Every byte of a rank's cache.

    path: "uniform" (one cross-layer buffer, `allocate_uniform_kv_caches`) or "per_group".
    buffers: sizes in bytes. shared_layers: (layer, target) pairs: the layer reads the target's.
    """

    path: str
    placement: str
    num_blocks: int
    buffers: tuple[int, ...]
    groups: tuple[GroupAddresses, ...]
    layers: tuple[LayerAddresses, ...]
    shared_layers: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def of_layer(self, name: str) -> LayerAddresses:
        """Of a layer, or of the one whose cache it shares. KeyError for an unknown name."""
        return self._by_name[name]

    def blocks_of(self, group: int) -> int:
        """Blocks that a table of the group may name, the null block's included."""
        return self.num_blocks * self.groups[group].blocks_per_slot

    @cached_property
    def _by_name(self) -> dict[str, LayerAddresses]:
        own = {layer.layer: layer for layer in self.layers}
        shared = {name: own[target] for name, target in self.shared_layers if target in own}
        return own | shared

    def to_json(self) -> dict[str, Any]:
        """Plain lists, numbers and strings: enough to find every byte without kvpipe."""
        return {
            "path": self.path,
            "placement": self.placement,
            "num_blocks": self.num_blocks,
            "buffers": list(self.buffers),
            "groups": [_group(group) for group in self.groups],
            "layers": [
                {
                    "layer": layer.layer,
                    "group": layer.group,
                    "layout": layer.layout,
                    "attention_backend": layer.attention_backend,
                    "views": [view.to_json() for view in layer.views],
                    "native": layer.native and layer.native.to_json(),
                }
                for layer in self.layers
            ],
            "shared_layers": [list(pair) for pair in self.shared_layers],
        }


def _group(group: GroupAddresses) -> dict[str, Any]:
    """Of blocks_per_slot only where there are several."""
    told = asdict(group)
    if group.blocks_per_slot == 1:
        del told["blocks_per_slot"]
    return told
