"""One array inside a page, and the dtypes that its numbers are stored in."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "uint8": 1,
    "int8": 1,
}


@dataclass(frozen=True, kw_only=True)
class PageArray:
    """One array inside a page, before a layout places it.

    per_token True:  [N, num_heads, width] of dtype (K, V, a latent row): a layout orders it.
    per_token False: `shape` of dtype, stored as one run (a convolution or SSM state).
    """

    name: str  # "k", "v", "latent", "conv", "ssm", ...
    dtype: str
    per_token: bool
    num_heads: int = 1
    width: int = 0
    shape: tuple[int, ...] = ()
    tokens_per_row: int = 1  # per_token: consecutive tokens that one row stands for (compressed)

    def num_bytes(self, block_size: int) -> int:
        """Bytes of this array in one page of block_size tokens."""
        rows = block_size // self.tokens_per_row
        count = rows * self.num_heads * self.width if self.per_token else prod(self.shape)
        return count * DTYPE_BYTES[self.dtype]
