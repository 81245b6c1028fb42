"""Which cases the kernels are tested with: orders x widths x block sizes x dtypes x sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

import torch

from kvpipe.backends.base import Buffer
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES

# name -> axes from outermost to innermost (L layers, B blocks, K the pair, N tokens, H heads).
ORDERS = {
    "k_before_v": "KBNH",
    "page_nhd": "BKNH",
    "page_hnd": "BKHN",
    "cross_layer": "BLKHN",
    "layers_outside": "LBKNH",
    "kv_packed": "BHNK",
    "mla": "BNH",
}
WIDTHS = (64, 80, 96, 128, 192, 256, 576)
BLOCK_SIZES = (1, 3, 16, 32, 256)
# (stored, new rows)
DTYPES = (
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("float32", "float32"),
    ("uint8", "uint8"),
    ("fp8_e4m3", "fp8_e4m3"),
    ("fp8_e4m3", "bfloat16"),
    ("fp8_e4m3", "float16"),
    ("fp8_e5m2", "bfloat16"),
    ("fp8_e5m2", "float32"),
)
# How the new rows lie: contiguous, a slice of a fused QKV projection, every head the first half of
# something longer, or at an odd address.
SOURCES = ("contiguous", "qkv_slice", "heads_apart", "odd_address")
# Bytes between the numbers of one row of the outermost axis but one and the next: 0, or an odd few.
PADDINGS = (0, 3, 16)
FACTORS = (tuple(ORDERS), WIDTHS, BLOCK_SIZES, DTYPES, SOURCES, PADDINGS)
LAYERS, HEADS, BLOCKS, V_WIDTH = 2, 2, 5, {576: 64, 192: 128}
MARGIN = 64  # canary bytes before and after each buffer


@dataclass(frozen=True)
class Case:
    order: str
    width: int
    block_size: int
    dtypes: tuple[str, str]
    source: str
    padding: int

    def __str__(self) -> str:
        stored, new = self.dtypes
        return (
            f"{self.order}-{self.width}-{self.block_size}-{new}_to_{stored}-{self.source}"
            f"-pad{self.padding}"
        )


def pairwise(factors: Sequence[Sequence[object]]) -> list[tuple[object, ...]]:
    """Rows in which every two values of every two factors meet: greedily, always the same rows."""
    columns = range(len(factors))
    pairs = list(combinations(columns, 2))
    missing = {(a, x, b, y) for a, b in pairs for x, y in product(factors[a], factors[b])}
    rows = []
    while missing:
        seed = min(missing, key=lambda pair: (pair[0], pair[2], str(pair[1]), str(pair[3])))
        row: dict[int, object] = {seed[0]: seed[1], seed[2]: seed[3]}
        for column in columns:
            if column not in row:
                row[column] = max(
                    factors[column], key=lambda value: _gained(missing, row, column, value)
                )
        covered = {(a, row[a], b, row[b]) for a, b in pairs}
        missing -= covered
        rows.append(tuple(row[column] for column in columns))
    return rows


def _gained(missing: set, row: dict[int, object], column: int, value: object) -> int:
    pairs = (
        (other, known, column, value) if other < column else (column, value, other, known)
        for other, known in row.items()
    )
    return sum(pair in missing for pair in pairs)


COMMIT_CASES = [Case(*row) for row in pairwise(FACTORS)]
FULL_CASES = [Case(*row) for row in product(*FACTORS[:4], ("qkv_slice",), (0,))]


def views_of(case: Case) -> list[ArrayView]:
    """K and V of the last layer, or the one latent array of MLA. Strides are torch's own, of a
    contiguous tensor with the axes in that order; every innermost row is `padding` bytes longer.
    Where K lies outside everything, V has rows of its own width and so strides of its own."""
    size = DTYPE_BYTES[case.dtypes[0]]
    axes, views, start = ORDERS[case.order], [], 0
    apart = axes.startswith("K")
    for index, name in enumerate("k" if case.order == "mla" else "kv"):
        width = V_WIDTH.get(case.width, case.width) if name == "v" else case.width
        row = ((width if apart else case.width) + case.padding) * size
        stride, num_bytes = _strides(axes.lstrip("K") if apart else axes, case, row)
        views.append(
            ArrayView(
                layer=f"{case}",
                array=name,
                buffer=0,
                dtype=case.dtypes[0],
                per_token=True,
                offset=start + stride.get("L", 0) * (LAYERS - 1) + stride.get("K", 0) * index,
                shape=(BLOCKS, case.block_size, _heads(case), width),
                strides=(stride["B"], stride["N"], stride["H"], size),
            )
        )
        start += num_bytes if apart else 0
    return views


def _heads(case: Case) -> int:
    return 1 if case.order == "mla" else HEADS


def _strides(axes: str, case: Case, row: int) -> tuple[dict[str, int], int]:
    """Bytes from one index to the next along each axis, and of the whole."""
    sizes = {"L": LAYERS, "B": BLOCKS, "K": 2, "N": case.block_size, "H": _heads(case)}
    shape = [sizes[axis] for axis in axes] + [row]
    whole = torch.empty(shape, dtype=torch.uint8, device="meta")
    return dict(zip(axes, whole.stride(), strict=False)), prod(shape)


def buffer_bytes(views: Iterable[ArrayView]) -> int:
    """Bytes up to the last one any view reaches, rounded up to a whole element."""
    last = 0
    for view in views:
        spans = ((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))
        last = max(last, view.offset + sum(spans) + DTYPE_BYTES[view.dtype])
    return -(-last // 16) * 16


def canary_buffer(num_bytes: int, device: object, seed: int = 0) -> tuple[Buffer, torch.Tensor]:
    """Random bytes with MARGIN more on either side: the buffer, and everything for comparison."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 256, (num_bytes + 2 * MARGIN,), dtype=torch.uint8, generator=generator)
    whole = whole.to(device)
    return Buffer(num_bytes=num_bytes, data=whole[MARGIN : MARGIN + num_bytes]), whole


def new_rows(
    case: Case, num_tokens: int, view: ArrayView, dtype: torch.dtype, device: object, seed: int
) -> torch.Tensor:
    """[T, H, D]: random numbers (random bytes where no arithmetic happens), laid out as asked."""
    heads, width = view.shape[2:]
    generator = torch.Generator().manual_seed(seed)
    count = num_tokens * 3 * heads * width + 1
    if case.dtypes[0] == case.dtypes[1]:
        raw = torch.randint(
            0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator
        )
        flat = raw.view(dtype)
    else:
        flat = (torch.randn(count, generator=generator) * 200).to(dtype)
    flat = flat.to(device)
    used = num_tokens * heads * width
    if case.source == "contiguous":
        return flat[:used].view(num_tokens, heads, width)
    if case.source == "heads_apart":
        return flat[: 2 * used].view(num_tokens, heads, 2 * width)[..., :width]
    if case.source == "odd_address":
        return flat[1 : used + 1].view(num_tokens, heads, width)
    return flat[: 3 * used].view(num_tokens, 3 * heads, width)[:, heads : 2 * heads]


def some_slots(view: ArrayView, seed: int) -> torch.Tensor:
    """Distinct slots in random order with the first, the last and two paddings among them."""
    num_slots = prod(view.shape[:2])
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randperm(num_slots, generator=generator)[:9]
    inner = inner[(inner != 0) & (inner != num_slots - 1)]
    ends = torch.tensor([-1, 0, num_slots - 1] if num_slots > 1 else [-1, 0])
    return torch.cat([ends[:2], inner, ends[2:], torch.tensor([-1])])
