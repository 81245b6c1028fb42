"""K and V of one token and head side by side, [B, H, N, C] with C = K | V."""

from __future__ import annotations

from kvpipe.layouts.base import Layout


class KVPacked(Layout):
    """The content axis of the lettered placements: they may move L, B, H and N, never split C."""

    name = "kv_packed"
    attention_backend = "KV_PACKED"
    page_order = "HNKD"
    tensor_order = "BHNKD"
    cross_order = "BLHNKD"
    native_order = "BHNC"


PLUGIN = KVPacked
