"""gather planned once: tokens of requests through their block tables, as [T, H, D] or [R, H, T, D].

B' kernel blocks of N' tokens, H heads, D head size, R requests; block_size manager tokens a table
entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from kvpipe.backends._grid import MAX_GRID_X, MAX_ROWS, lanes_and_rows
from kvpipe.backends._launcher import Launcher
from kvpipe.backends._pages import WIDTHS, check_extent
from kvpipe.backends.base import Array, Buffer
from kvpipe.backends.torch_ import FP8_MAX
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES

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


# What a call needs of a launch: run, words, shape, tokens of a unit, kernel rows of a unit.
Prepared = tuple[Callable[[], object], Any, Any, int, int]


class GatherPlan:
    """plan(block_table [max_blocks] int32, num_tokens) -> [num_tokens, H, D] of out_dtype.

    block_size: tokens behind one entry of the table, a multiple of the view's own N'.
    """

    def __init__(
        self,
        backend: Launcher,
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
        self._heads, self._width = view.shape[2:]
        wanted = out_dtype or view.dtype
        self._dequantises = view.dtype in FP8_MAX and wanted in DEQUANTISED
        # Any other change of dtype is torch's, after the bytes are in one place.
        converts = not self._dequantises and wanted != view.dtype
        self._convert = backend.dtype(wanted) if converts else None
        self._scale = scale
        self._dtype = backend.dtype(wanted if self._dequantises else view.dtype)
        self._new = backend.torch.empty(0, dtype=self._dtype, device=backend.device).new_empty
        self._token_bytes = self._heads * self._width * self._dtype.itemsize
        token_rows = _token_rows(view)
        self._launches = [self._prepare(token_rows)]
        blocks = _block_rows(view, token_rows)
        if backend.long_rows and blocks is not None:
            # Whole blocks first, as one row each; the launch for single tokens does the rest.
            self._launches.insert(0, self._prepare(blocks))
        self._apart = self._prepare(_head_rows(view))
        self._max_tokens = MAX_ROWS // self._heads

    def __call__(self, block_table: Array, num_tokens: int) -> Array:
        if num_tokens > self._max_tokens or num_tokens > block_table.numel() * self._block_size:
            self._refuse(block_table.numel(), num_tokens)
        # Not as a tuple, which takes torch twice as long to read.
        out = self._new(num_tokens, self._heads, self._width)
        at, table, first = out.data_ptr(), block_table.data_ptr(), 0
        for run, words, shape, tokens, heads in self._launches:
            stop = num_tokens // tokens
            start = first // tokens
            if stop > start:
                words[0], words[10], words[11], words[12] = at, table, start, stop
                blocks = ((stop - start) * heads - 1) // shape[4] + 1
                shape[0] = blocks if blocks < MAX_GRID_X else MAX_GRID_X
                run()
                first = stop * tokens
                at += first * self._token_bytes
        return out if self._convert is None else self._converted(out)

    def heads_apart(self, tables: Array, first_tokens: Sequence[int], num_tokens: int) -> Array:
        """[R, H, num_tokens, D]: of the blocks in each row of tables [R, max_blocks] (int32,
        contiguous) the tokens [first, first + num_tokens)."""
        last = max(first_tokens, default=0) + num_tokens if num_tokens else 0
        if last > min(tables.shape[1] * self._block_size, self._max_tokens):
            self._refuse(tables.shape[1], last)
        out = self._new(len(first_tokens), self._heads, num_tokens, self._width)
        run, words, shape, _, heads = self._apart
        row = self._width * self._dtype.itemsize
        blocks = (num_tokens * heads - 1) // shape[4] + 1
        shape[0] = blocks if blocks < MAX_GRID_X else MAX_GRID_X
        words[1], words[2] = row, num_tokens * row
        at, table = out.data_ptr(), tables.data_ptr()
        for first in first_tokens if num_tokens else ():
            words[0], words[10], words[11], words[12] = at, table, first, first + num_tokens
            run()
            at += self._heads * num_tokens * row
            table += tables.shape[1] * tables.itemsize
        return out if self._convert is None else self._converted(out)

    def _converted(self, out: Array) -> Array:
        return (out.to(self._backend.torch.float32) * self._scale).to(self._convert)

    def _refuse(self, num_blocks: int, num_tokens: int) -> None:
        held = num_blocks * self._block_size
        raise IndexError(f"gather: {num_tokens} tokens wanted, the block table ends at {held}")

    def _prepare(self, rows: _Rows) -> Prepared:
        backend, num_blocks = self._backend, self._view.shape[0]
        stored = rows.row * DTYPE_BYTES[self._view.dtype]
        kernel, unit = self._kernel(gcd(self._cache, *rows.strides), stored)
        out_row, length = rows.row * self._dtype.itemsize, stored // unit
        words = [0, rows.heads * out_row, out_row, self._cache, *rows.strides, rows.heads, length,
                 out_row, 0, 0, 0, self._block_size // rows.tokens, rows.units,
                 num_blocks * rows.units, backend.errors.address,
                 backend.scales_at((self._scale,))]  # fmt: skip
        lanes, rows_per_block = lanes_and_rows(length)
        launch = backend.prepare(kernel, words, (1, 1, 1, lanes, rows_per_block, 1))
        return launch.run, launch.words, launch.shape, rows.tokens, rows.heads

    def _kernel(self, alignment: int, row_bytes: int) -> tuple[str, int]:
        """Name of the kernel, and the stored bytes that one lane reads."""
        if self._dequantises:
            wide = alignment % 8 == 0 and row_bytes % 8 == 0
            to = str(self._dtype).removeprefix("torch.")
            return f"kv_gather_{self._view.dtype}_{to}_v{8 if wide else 1}", 8 if wide else 1
        width = next(w for w in WIDTHS if gcd(alignment, row_bytes) % w == 0)
        return f"kv_gather_v{width}", width


def _head_rows(view: ArrayView) -> _Rows:
    """A row a head."""
    num_blocks, kernel_block, heads, row = view.shape
    strides = tuple(
        stride if count > 1 else 0
        for stride, count in zip(view.strides[:3], view.shape[:3], strict=True)
    )
    block, token, head = strides
    return _Rows(strides=(block, token, head), heads=heads, row=row, units=kernel_block, tokens=1)


def _token_rows(view: ArrayView) -> _Rows:
    """A row a head, or a row a token where its heads lie side by side."""
    rows = _head_rows(view)
    if rows.heads > 1 and rows.strides[2] == rows.row * DTYPE_BYTES[view.dtype]:
        block, token, _ = rows.strides
        return replace(rows, strides=(block, token, 0), heads=1, row=rows.heads * rows.row)
    return rows


def _block_rows(view: ArrayView, rows: _Rows) -> _Rows | None:
    """A row a kernel block, where its tokens lie side by side."""
    block, token, _ = rows.strides
    kernel_block = view.shape[1]
    if rows.heads > 1 or kernel_block == 1 or token != rows.row * DTYPE_BYTES[view.dtype]:
        return None
    row = rows.row * kernel_block
    return _Rows(strides=(block, 0, 0), heads=1, row=row, units=1, tokens=kernel_block)
