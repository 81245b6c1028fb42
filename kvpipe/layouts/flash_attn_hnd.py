"""FlashAttention's cache with heads outside tokens: [2, B, N, H, D] stored as [2, B, H, N, D]."""

from __future__ import annotations

from kvpipe.layouts.base import Layout


class FlashAttnHND(Layout):
    """All layers of one head lie together in a block, so that heads can be sent to another rank."""

    name = "flash_attn_hnd"
    attention_backend = "FLASH_ATTN"
    page_order = "KHND"
    tensor_order = "KBHND"
    cross_order = "BHLKND"
    native_order = "KBNHD"


PLUGIN = FlashAttnHND
