"""FlashInfer's cache with heads outside tokens: [B, 2, N, H, D] stored as [B, 2, H, N, D]."""

from __future__ import annotations

from kvpipe.layouts.base import Layout


class FlashInferHND(Layout):
    """The order its Blackwell kernels ask for. Kernel blocks of 16, 32 or 64 tokens."""

    name = "flashinfer_hnd"
    attention_backend = "FLASHINFER"
    page_order = "KHND"
    tensor_order = "BKHND"
    cross_order = "BKHLND"
    native_order = "BKNHD"
    kernel_block_sizes = (16, 32, 64)


PLUGIN = FlashInferHND
