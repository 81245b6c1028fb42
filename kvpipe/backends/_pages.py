"""Blocks of many views -> the page table of kv_cache.cu (fill, copy, pack, unpack).

A page of one view is outer x inner rows of contiguous bytes: [N, H] rows of D elements folded as
far as the strides allow. One int64 line a view; the columns are `enum PageColumn` of the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from kvpipe.backends.base import Buffer
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES

WIDTHS = (16, 4, 2, 1)  # bytes a lane moves, widest first
ROW_LENGTH_COLUMN = 7
# 256 lanes of 16 bytes: a longer row would leave the rest of a GPU idle.
_LONGEST_ROW = 4096


@dataclass(frozen=True, kw_only=True)
class PageRows:
    """outer x inner rows of row_bytes, in the order of the array's indices; strides in bytes."""

    outer: int
    outer_stride: int
    inner: int
    inner_stride: int
    row_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.outer * self.inner * self.row_bytes


def page_rows(view: ArrayView) -> PageRows:
    """Rows of one block of `view`, whatever lies between them."""
    itemsize = DTYPE_BYTES[view.dtype]
    if not view.per_token:
        outer, heads, row = 1, 1, prod(view.shape[1:]) * itemsize
        outer_stride = head_stride = 0
    else:
        _, outer, heads, width = view.shape
        _, outer_stride, head_stride = view.strides[:3]
        row = width * itemsize
        if heads == 1 or head_stride == row:
            heads, row = 1, heads * row
        if heads == 1 and (outer == 1 or outer_stride == row):
            outer, row = 1, outer * row
    if outer == heads == 1 and row > _LONGEST_ROW and row % _LONGEST_ROW == 0:
        outer, outer_stride, row = row // _LONGEST_ROW, _LONGEST_ROW, _LONGEST_ROW
    return PageRows(
        outer=outer,
        outer_stride=outer_stride if outer > 1 else 0,
        inner=heads,
        inner_stride=head_stride if heads > 1 else 0,
        row_bytes=row,
    )


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """lines: one row of 10 int64 a view, offsets relative to `base`. width: bytes a lane may move.

    max_rows: rows of the view with the most. page_bytes: packed bytes of each view's page.
    """

    base: int
    lines: tuple[tuple[int, ...], ...]
    width: int
    max_rows: int
    row_bytes: int
    page_bytes: tuple[int, ...]

    def aligned_to(self, address: int) -> PageTable:
        """The same table in vectors that also divide `address`."""
        width = next(width for width in WIDTHS if gcd(self.width, address) % width == 0)
        grown, column = self.width // width, ROW_LENGTH_COLUMN
        lines = tuple(
            (*line[:column], line[column] * grown, *line[column + 1 :]) for line in self.lines
        )
        return replace(self, width=width, lines=lines)


def page_table(buffers: Sequence[Buffer], views: Sequence[ArrayView], num_listed: int) -> PageTable:
    """The table for `num_listed` blocks (packed bytes lie view after view, block after block)."""
    rows = [page_rows(view) for view in views]
    starts = [buffers[view.buffer].data.data_ptr() + view.offset for view in views]
    base = min(starts)
    numbers = [base]
    for view, page, start in zip(views, rows, starts, strict=True):
        numbers += [start - base, view.strides[0] if view.shape[0] > 1 else 0]
        numbers += [page.outer_stride, page.inner_stride, page.row_bytes]
    width = next(width for width in WIDTHS if gcd(*numbers) % width == 0)
    lines, packed = [], 0
    for view, page, start in zip(views, rows, starts, strict=True):
        lines.append((start - base, view.strides[0], view.shape[0], page.outer, page.outer_stride,
                      page.inner, page.inner_stride, page.row_bytes // width, packed,
                      page.num_bytes))  # fmt: skip
        packed += page.num_bytes * num_listed
    return PageTable(
        base=base,
        lines=tuple(lines),
        width=width,
        max_rows=max(page.outer * page.inner for page in rows),
        row_bytes=max(page.row_bytes for page in rows),
        page_bytes=tuple(page.num_bytes for page in rows),
    )


def check_extent(buffer: Buffer, view: ArrayView) -> None:
    """A view that leaves its buffer is our own mistake, and the last place to see it."""
    last = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True) if n > 1)
    end = view.offset + last + DTYPE_BYTES[view.dtype]
    assert prod(view.shape) == 0 or (view.offset >= 0 and end <= buffer.num_bytes), (
        f"{view.layer} {view.array}: ends at byte {end:,} of a buffer of {buffer.num_bytes:,}"
    )
