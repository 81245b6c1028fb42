"""gather planned once: tokens [0, T) of one request, [T, H, D], through its block table.

B' kernel blocks of N' tokens, H heads, D head size; block_size manager tokens a table entry.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """What one kernel row is: a head, a token whose heads lie side by side, or a whole block.

    strides: of a block, a unit (token or block) and a head, bytes. units: in a kernel block.
    tokens: in a unit. row: numbers in a row.
    """

    strides: tuple[int, int, int]
    heads: int
    row: int
    units: int
    tokens: int


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
        self._cache = buffer.data.data_ptr() + view.offset
        self._token_elements = view.shape[2] * view.shape[3]
        wanted = out_dtype or view.dtype
        self._dequantises = view.dtype in FP8_MAX and wanted in DEQUANTISED
        # Any other change of dtype is torch's, after the bytes are in one place.
        self._convert = None if self._dequantises or wanted == view.dtype else wanted
        self._scale = scale
        self._dtype = backend.dtype(wanted if self._dequantises else view.dtype)
        token_rows = _token_rows(view)
        self._launches = [self._prepare(token_rows)]
        blocks = _block_rows(view, token_rows)
        if backend.long_rows and blocks is not None:
            # Whole blocks first, as one row each; the launch for single tokens does the rest.
            self._launches.insert(0, self._prepare(blocks))

    def __call__(self, block_table: Array, num_tokens: int) -> Array:
        torch = self._backend.torch
        held = block_table.numel() * self._block_size
        if num_tokens > held:
            raise IndexError(f"gather: {num_tokens} tokens wanted, the block table ends at {held}")
        shape = (num_tokens, *self._view.shape[2:])
        out = torch.empty(shape, dtype=self._dtype, device=self._backend.device)
        first = 0
        for launch, rows in self._launches:
            stop = num_tokens // rows.tokens * rows.tokens
            if stop > first:
                self._run(launch, rows, out, block_table, first, stop)
            first = stop
        if self._convert is None:
            return out
        return (out.to(torch.float32) * self._scale).to(self._backend.dtype(self._convert))

    def _run(
        self, launch: Launch, rows: _Rows, out: Array, block_table: Array, first: int, stop: int
    ) -> None:
        words, grid = launch.words, launch.shape
        words[0] = out.data_ptr() + first * self._token_elements * self._dtype.itemsize
        words[9] = block_table.data_ptr()
        words[10], words[11] = first // rows.tokens, stop // rows.tokens
        grid[0] = grid_x((stop - first) // rows.tokens * rows.heads, grid[4])
        launch.run()

    def _prepare(self, rows: _Rows) -> tuple[Launch, _Rows]:
        backend, num_blocks = self._backend, self._view.shape[0]
        stored = rows.row * DTYPE_BYTES[self._view.dtype]
        kernel, unit = self._kernel(gcd(self._cache, *rows.strides), stored)
        out_row, length = rows.row * self._dtype.itemsize, stored // unit
        words = [0, out_row, self._cache, *rows.strides, rows.heads, length, out_row, 0, 0, 0,
                 self._block_size // rows.tokens, rows.units, num_blocks * rows.units,
                 backend.errors.address, backend.scales_at((self._scale,))]  # fmt: skip
        lanes, rows_per_block = lanes_and_rows(length)
        return backend.prepare(kernel, words, (1, 1, 1, lanes, rows_per_block, 1)), rows

    def _kernel(self, alignment: int, row_bytes: int) -> tuple[str, int]:
        """Name of the kernel, and the stored bytes that one lane reads."""
        if self._dequantises:
            wide = alignment % 8 == 0 and row_bytes % 8 == 0
            to = str(self._dtype).removeprefix("torch.")
            return f"kv_gather_{self._view.dtype}_{to}_v{8 if wide else 1}", 8 if wide else 1
        width = next(w for w in WIDTHS if gcd(alignment, row_bytes) % w == 0)
        return f"kv_gather_v{width}", width


def _token_rows(view: ArrayView) -> _Rows:
    """A row a head, or a row a token where its heads lie side by side."""
    num_blocks, kernel_block, heads, row = view.shape
    block, token, head = view.strides[:3]
    if heads == 1 or head == row * DTYPE_BYTES[view.dtype]:
        heads, row, head = 1, heads * row, 0
    block, token = block if num_blocks > 1 else 0, token if kernel_block > 1 else 0
    return _Rows(strides=(block, token, head), heads=heads, row=row, units=kernel_block, tokens=1)


def _block_rows(view: ArrayView, rows: _Rows) -> _Rows | None:
    """A row a kernel block, where its tokens lie side by side."""
    block, token, _ = rows.strides
    kernel_block = view.shape[1]
    if rows.heads > 1 or kernel_block == 1 or token != rows.row * DTYPE_BYTES[view.dtype]:
        return None
    row = rows.row * kernel_block
    return _Rows(strides=(block, 0, 0), heads=1, row=row, units=1, tokens=kernel_block)
