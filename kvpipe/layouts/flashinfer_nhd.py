"""FlashInfer's paged cache, [B, 2, N, H, D]: K then V inside each block (arXiv:2501.01005)."""

from __future__ import annotations

from kvpipe.layouts.base import Layout


class FlashInferNHD(Layout):
    """Kernel blocks of 16, 32 or 64 tokens."""

    name = "flashinfer_nhd"
    attention_backend = "FLASHINFER"
    page_order = "KNHD"
    tensor_order = "BKNHD"
    cross_order = "BLKNHD"
    native_order = "BKNHD"
    kernel_block_sizes = (16, 32, 64)


PLUGIN = FlashInferNHD
