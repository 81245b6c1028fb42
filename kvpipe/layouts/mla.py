"""One latent row a token, [B, N, C]: what MLA and its indexer store (arXiv:2405.04434); and the
rows of a window, which kernels are told one by one."""

from __future__ import annotations

from kvpipe.layouts.base import Layout
from kvpipe.specs.base import KVCacheSpec


class MLA(Layout):
    """C numbers a token, no heads."""

    name = "mla"
    attention_backend = "TRITON_MLA"
    arrays = None
    page_order = "NHD"
    tensor_order = "BNHD"
    cross_order = "BLNHD"
    native_order = "BND"
    is_movable = True
    state_alignment = 64  # the smallest block of the MLA kernels that engines prefer


class MLAWindow(MLA):
    """Rows of a window alone, in blocks of any size (DeepSeek-V4's states have 4 or 8 tokens)."""

    name = "mla_window"
    attention_backend = "SPARSE_SWA"
    kernel_block_multiple = 1

    def refuses(self, spec: KVCacheSpec) -> str:
        if not (spec.is_latent and spec.frees_tokens):
            return f"{spec.kind} is no window of latent rows"
        return super().refuses(spec)


PLUGIN = MLA
