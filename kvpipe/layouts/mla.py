"""One latent row a token, [B, N, C]: what MLA and its indexer store (arXiv:2405.04434)."""

from __future__ import annotations

from kvpipe.layouts.base import Layout


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


PLUGIN = MLA
