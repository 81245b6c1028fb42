"""write_kv (reshape_and_cache) planned once: strides checked, arguments kept, pointers patched.

B' kernel blocks of N' tokens, T new tokens, H heads, D head size. One or two sides (K, or K and V)
that share their blocks; everything else about them may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from kvpipe.backends._grid import MAX_GRID_X, MAX_ROWS, lanes_and_rows
from kvpipe.backends._launcher import Launcher
from kvpipe.backends._pages import WIDTHS, check_extent
from kvpipe.backends.base import Array, Buffer
from kvpipe.backends.torch_ import FP8_MAX
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES

# What a call needs of a launch: run, words, shape, and the most kernel rows a token has.
Prepared = tuple[Callable[[], object], Any, Any, int]


class WritePlan:
    """plan(k, slots) or plan(k, slots, v): new rows [T, H, D] to slots [T] (int64, contiguous).

    targets: (buffer, view) of each side, per-token views of one shape [B', N'] and one dtype.
    dtype: torch dtype of the new rows: the views' own, or fp16, bf16, fp32 where those are fp8.
    A first call with rows of new strides or a new alignment prepares a launch; a later one costs
    about a microsecond. Not thread-safe: one plan a thread, as one launch is patched in place.
    Slots of a planned write are distinct but for padding, as a block manager's are: of two tokens
    with one slot, one thread keeps the last, several may keep parts of both. write_kv looks first.
    """

    def __init__(
        self,
        backend: Launcher,
        targets: Sequence[tuple[Buffer, ArrayView]],
        dtype: Any,
        scales: Sequence[float],
    ) -> None:
        self._backend, self._targets = backend, tuple(targets)
        view = targets[0][1]
        self.dtype, self._quantises = _row_dtype(backend, view, dtype)
        self._scales = backend.scales_at(scales)
        for buffer, each in targets:
            check_extent(buffer, each)
            if not each.per_token or each.shape[:2] != view.shape[:2] or each.dtype != view.dtype:
                raise ValueError(
                    "write_kv: per-token arrays of one [blocks, tokens] and dtype, got "
                    f"{view.array} {view.shape} {view.dtype} and "
                    f"{each.array} {each.shape} {each.dtype}"
                )
        self._num_slots = view.shape[0] * view.shape[1]
        if self._num_slots > MAX_ROWS:
            raise ValueError(
                f"write_kv: {self._num_slots:,} slots, the kernels count to {MAX_ROWS:,}"
            )
        self._max_tokens = MAX_ROWS // max(each.shape[2] for _, each in targets)
        self._k_elements, self._v_elements = ([prod(e.shape[2:]) for _, e in targets] + [0])[:2]
        self._int64 = backend.torch.int64
        self._launches: dict[Any, Prepared] = {}

    def converted(self, new: Array, view: ArrayView) -> Array:
        """new with the dtype and the unit stride of D that the kernels need."""
        if new.dtype is not self.dtype:
            new = new.to(self.dtype)
        return new if new.stride(-1) == 1 or new.shape[-1] == 1 else new.contiguous()

    def __call__(self, k: Array, slots: Array, v: Array | None = None) -> None:
        num_tokens, k_at = slots.numel(), k.data_ptr()
        key: Any
        wrong = k.numel() != num_tokens * self._k_elements or k.dtype is not self.dtype
        if v is None:
            v_at, key = 0, (k_at & 15) if k.is_contiguous() else (k.stride(), k_at & 15)
        else:
            v_at = v.data_ptr()
            wrong |= v.numel() != num_tokens * self._v_elements or v.dtype is not self.dtype
            # Contiguous rows, the common case, need no strides to tell one launch from another.
            key = (k_at | v_at) & 15
            if not (k.is_contiguous() and v.is_contiguous()):
                key = (k.stride(), v.stride(), key)
        if wrong or slots.dtype is not self._int64 or not slots.is_contiguous():
            self._refuse([k] if v is None else [k, v], slots)
        if not 0 < num_tokens <= self._max_tokens:
            self._nothing_or_too_much(num_tokens)
            return
        found = self._launches.get(key)
        if found is None:
            found = self._prepare([k] if v is None else [k, v], (k_at | v_at) & 15)
            self._launches[key] = found
        run, words, shape, rows_per_token = found
        words[0], words[9], words[18], words[19] = k_at, v_at, slots.data_ptr(), num_tokens
        blocks = (num_tokens * rows_per_token - 1) // shape[4] + 1
        shape[0] = blocks if blocks < MAX_GRID_X else MAX_GRID_X
        run()

    def _prepare(self, new: Sequence[Array], misalignment: int) -> Prepared:
        """The launch for rows with these strides."""
        if len(new) != len(self._targets):
            raise ValueError(f"write_kv: planned for {len(self._targets)} arrays, got {len(new)}")
        sides = [_side(rows, *target) for rows, target in zip(new, self._targets, strict=True)]
        kernel, unit = self._kernel(sides, misalignment)
        words = [word for side in sides for word in side.words(unit)]
        words += [0] * (18 - len(words))  # an absent V: blockIdx.y is never 1
        block_size = self._targets[0][1].shape[1]
        words += [0, 0, block_size, self._num_slots, self._backend.errors.address, self._scales]
        lanes, rows = lanes_and_rows(max(side.row_bytes // unit for side in sides))
        launch = self._backend.prepare(kernel, words, (1, len(sides), 1, lanes, rows, 1))
        return launch.run, launch.words, launch.shape, max(side.num_heads for side in sides)

    def _kernel(self, sides: Sequence[_Side], misalignment: int) -> tuple[str, int]:
        """Name of the kernel, and the bytes of new rows that one lane reads."""
        read = gcd(misalignment, *(number for side in sides for number in side.read_alignment))
        written = gcd(*(number for side in sides for number in side.write_alignment))
        if not self._quantises:
            width = next(width for width in WIDTHS if gcd(read, written) % width == 0)
            return f"kv_write_v{width}", width
        source, itemsize = str(self.dtype).removeprefix("torch."), self.dtype.itemsize
        wide = read % 16 == 0 and written % 8 == 0 and gcd(read, 8 * itemsize) == 8 * itemsize
        lanes = 8 if wide else 1
        return f"kv_write_{source}_{self._targets[0][1].dtype}_v{lanes}", lanes * itemsize

    def _nothing_or_too_much(self, num_tokens: int) -> None:
        if num_tokens:
            raise ValueError(
                f"write_kv: {num_tokens:,} tokens at once, at most {self._max_tokens:,}"
            )

    def _refuse(self, new: Sequence[Array], slots: Array) -> None:
        wanted = [
            f"[{slots.numel()}, {view.shape[2]}, {view.shape[3]}]" for _, view in self._targets
        ]
        got = [f"{list(rows.shape)} {rows.dtype}" for rows in new]
        raise ValueError(
            f"write_kv: new rows {' and '.join(wanted)} {self.dtype} and contiguous int64 slots "
            f"wanted, got {' and '.join(got)} and {list(slots.shape)} {slots.dtype}"
        )


@dataclass(frozen=True, kw_only=True)
class _Side:
    """Rows of one array: where they come from and where they go (bytes). Heads that lie side by
    side on both ends are one row."""

    source_token_stride: int
    source_head_stride: int
    cache: int
    strides: tuple[int, int, int]
    num_heads: int
    row_bytes: int  # of new rows

    @property
    def read_alignment(self) -> tuple[int, ...]:
        return self.source_token_stride, self.source_head_stride, self.row_bytes

    @property
    def write_alignment(self) -> tuple[int, ...]:
        return self.cache, *self.strides

    def words(self, unit: int) -> list[int]:
        """SIDE_PARAMETERS of kv_cache.cu; the source pointer is patched at each call."""
        return [0, self.source_token_stride, self.source_head_stride, self.cache, *self.strides,
                self.num_heads, self.row_bytes // unit]  # fmt: skip


def _side(rows: Array, buffer: Buffer, view: ArrayView) -> _Side:
    num_blocks, block_size, heads, width = view.shape
    if rows.dim() != 3 or rows.shape[1:] != (heads, width) or (width > 1 and rows.stride(2) != 1):
        raise ValueError(
            f"write_kv: new rows [T, {heads}, {width}] with a unit last stride wanted for "
            f"'{view.array}' of {view.layer}, got {list(rows.shape)} strides {list(rows.stride())}"
        )
    itemsize, stored = rows.element_size(), DTYPE_BYTES[view.dtype]
    token, head = (rows.stride(axis) * itemsize for axis in (0, 1))
    block_stride, token_stride, head_stride = view.strides[:3]
    if heads == 1 or (head == width * itemsize and head_stride == width * stored):
        heads, width, head, head_stride = 1, heads * width, 0, 0
    return _Side(
        source_token_stride=token,
        source_head_stride=head,
        cache=buffer.data.data_ptr() + view.offset,
        strides=(
            block_stride if num_blocks > 1 else 0,
            token_stride if block_size > 1 else 0,
            head_stride,
        ),
        num_heads=heads,
        row_bytes=width * itemsize,
    )


def _row_dtype(backend: Launcher, view: ArrayView, dtype: Any) -> tuple[Any, bool]:
    """The dtype new rows must have, and whether the kernel quantises them."""
    torch, stored = backend.torch, backend.dtype(view.dtype)
    if dtype == stored or view.dtype not in FP8_MAX:
        return stored, False
    return (dtype if dtype in (torch.float16, torch.bfloat16) else torch.float32), True
