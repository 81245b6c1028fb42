"""K and V of one token and head side by side, [B, H, N, C] with C = K | V."""

from __future__ import annotations

from kvpipe.layouts.base import Layout
from kvpipe.specs.base import KVCacheSpec


class KVPacked(Layout):
    """The content axis of the lettered placements: they may move L, B, H and N, never split C.
    Also takes content that a spec packs itself (one array of H rows a token)."""

    name = "kv_packed"
    attention_backend = "KV_PACKED"
    page_order = "HNKD"
    tensor_order = "BHNKD"
    cross_order = "BLHNKD"
    native_order = "BHNC"
    is_movable = True

    def refuses(self, spec: KVCacheSpec) -> str:
        arrays = spec.page_arrays()
        packed = len(arrays) == 1 and arrays[0].per_token and arrays[0].name == "kv"
        return "" if packed else super().refuses(spec)


PLUGIN = KVPacked
