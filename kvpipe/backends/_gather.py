"""gather planned once: tokens [0, T) of one request, [T, H, D], through its block table."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from kvpipe.backends._grid import MAX_ROWS, grid_x, lanes_and_rows
from kvpipe.backends._pages import WIDTHS, check_extent
from kvpipe.backends.base import Array, Buffer
from kvpipe.backends.torch_ import FP8_MAX
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES

if TYPE_CHECKING:
    from kvpipe.backends._launch import KernelBackend, Launch

DEQUANTISED = ("float16", "bfloat16", "float32")


class GatherPlan:
    """plan(block_table [max_blocks] int32, num_tokens) -> [num_tokens, H, D] of out_dtype.

    block_size: tokens behind one entry of the table, a multiple of the view's own N'.
    """

    def __init__(
        self,
        backend: KernelBackend,
        buffer: Buffer,
        view: ArrayView,
        block_size: int,
        out_dtype: str | None,
        scale: float,
    ) -> None:
        check_extent(buffer, view)
        num_slots = view.shape[0] * view.shape[1]
        if not view.per_token or num_slots > MAX_ROWS or block_size % view.shape[1]:
            raise ValueError(
                f"gather: blocks of {block_size} tokens from '{view.array}' of {view.layer}, "
                f"{view.shape}: not a per-token array in blocks that divide {block_size}"
            )
        self._backend, self._view, self._block_size = backend, view, block_size
        self._shape = view.shape[2:]
        wanted = out_dtype or view.dtype
        self._dequantises = view.dtype in FP8_MAX and wanted in DEQUANTISED
        # Any other change of dtype is torch's, after the bytes are in one place.
        self._convert = None if self._dequantises or wanted == view.dtype else wanted
        self._scale = scale
        self._dtype = backend.dtype(wanted if self._dequantises else view.dtype)
        self._launch, self._heads = self._prepare(buffer, num_slots)

    def __call__(self, block_table: Array, num_tokens: int) -> Array:
        torch = self._backend.torch
        held = block_table.numel() * self._block_size
        if num_tokens > held:
            raise IndexError(
                f"gather: {num_tokens} tokens asked for, the block table ends at {held}"
            )
        out = torch.empty(
            (num_tokens, *self._shape), dtype=self._dtype, device=self._backend.device
        )
        if num_tokens:
            words, grid = self._launch.words, self._launch.shape
            words[0], words[9], words[10] = out.data_ptr(), block_table.data_ptr(), num_tokens
            grid[0] = grid_x(num_tokens * self._heads, grid[4])
            self._launch.run()
        if self._convert is None:
            return out
        return (out.to(torch.float32) * self._scale).to(self._backend.dtype(self._convert))

    def _prepare(self, buffer: Buffer, num_slots: int) -> tuple[Launch, int]:
        view, backend = self._view, self._backend
        num_blocks, kernel_block, heads, width = view.shape
        block, token, head = view.strides[:3]
        itemsize = DTYPE_BYTES[view.dtype]
        if heads == 1 or head == width * itemsize:
            heads, width, head = 1, heads * width, 0
        block, token = block if num_blocks > 1 else 0, token if kernel_block > 1 else 0
        cache, out_row = buffer.data.data_ptr() + view.offset, width * self._dtype.itemsize
        kernel, unit = self._kernel(gcd(cache, block, token, head), width * itemsize)
        row_length = width * itemsize // unit
        words = [0, out_row, cache, block, token, head, heads, row_length, out_row, 0, 0,
                 self._block_size, kernel_block, num_slots, backend.errors.address,
                 backend.scales_at((self._scale,))]  # fmt: skip
        lanes, rows = lanes_and_rows(row_length)
        return backend.prepare(kernel, words, (1, 1, 1, lanes, rows, 1)), heads

    def _kernel(self, alignment: int, row_bytes: int) -> tuple[str, int]:
        """Name of the kernel, and the stored bytes that one lane reads."""
        if self._dequantises:
            wide = alignment % 8 == 0 and row_bytes % 8 == 0
            to = str(self._dtype).removeprefix("torch.")
            return f"kv_gather_{self._view.dtype}_{to}_v{8 if wide else 1}", 8 if wide else 1
        width = next(w for w in WIDTHS if gcd(alignment, row_bytes) % w == 0)
        return f"kv_gather_v{width}", width
