"""Blocks of any size, one token included: kernels that are given a slot for each token, as SGLang's
with page_size=1 (arXiv:2312.07104)."""

from __future__ import annotations

from kvpipe.layouts.base import Layout
from kvpipe.specs.base import KVCacheSpec


class TokenRows(Layout):
    """K and V of a token, or whatever one row a token is stored."""

    name = "token_rows"
    attention_backend = "TOKEN_ROWS"
    page_order = "KNHD"
    tensor_order = "KBNHD"
    cross_order = "BLKNHD"
    native_order = "KBNHD"
    kernel_block_multiple = 1
    state_alignment = 1

    def refuses(self, spec: KVCacheSpec) -> str:
        arrays = spec.page_arrays()
        rows = len(arrays) == 1 and arrays[0].per_token
        return "" if rows else super().refuses(spec)


PLUGIN = TokenRows
