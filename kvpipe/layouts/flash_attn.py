"""FlashAttention's paged cache, [2, B, N, H, D]: K of all blocks, then V of all blocks."""

from __future__ import annotations

from kvpipe.layouts.base import Layout


class FlashAttn(Layout):
    """Kernel blocks are multiples of 16 tokens. A tensor shared with layers that split their pages
    otherwise is re-strided: K and V of a block side by side, as `page_order` says."""

    name = "flash_attn"
    attention_backend = "FLASH_ATTN"
    page_order = "KNHD"
    tensor_order = "KBNHD"
    cross_order = "BLKNHD"
    native_order = "KBNHD"


PLUGIN = FlashAttn
