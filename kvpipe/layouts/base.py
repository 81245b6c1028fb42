"""A layout: the order of K, V, tokens and heads inside a layer's memory, as byte strides.

Axes, one letter each, outermost first in an `order`:
L layers, B blocks, K the pair (K, V), H heads, N tokens in a kernel block, D the numbers of a head.
A layout answers with views, never with memory; the same views are used by every backend, by the
reports and by the slow self-proof.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.layouts.kernel_ids import KernelIds
from kvpipe.specs.base import DTYPE_BYTES, KVCacheSpec, PageArray


@dataclass(frozen=True, kw_only=True)
class ArrayView:
    """One typed array of one layer inside one buffer: all a kernel needs to know about it.

    Token arrays (K, V, a latent row): shape [B', N', H, D] over B' kernel blocks of N' tokens, and
    element (b, n, h, c) lies at
        offset + b * strides[0] + n * strides[1] + h * strides[2] + c * itemsize   (bytes)
    where slot s is block s // N', token s % N' (a row, where one row stands for several tokens).
    State arrays: shape [B, *state_shape]; block b at offset + b * strides[0], the rest contiguous.
    ids_apart: kernel blocks from one block of the manager to the next, where other layers' pages
    lie between (None: those of the block itself).
    """

    layer: str
    array: str  # "k", "v", "latent", "conv", "ssm", ...
    buffer: int  # index into AddressMap.buffers
    dtype: str
    per_token: bool
    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, one a dimension
    ids_apart: int | None = None

    def kernel_ids(self, num_blocks: int) -> KernelIds:
        """Of token arrays. num_blocks: of the manager."""
        count, rows = self.shape[0], self.shape[1]
        if self.ids_apart is None:
            held = count // max(num_blocks, 1) or 1
            return KernelIds(held=held, apart=held, rows=rows)
        held = count - (num_blocks - 1) * self.ids_apart
        return KernelIds(held=held, apart=self.ids_apart, rows=rows)

    def columns(self, start: int, stop: int) -> ArrayView:
        """Numbers [start, stop) of every head as an array of their own (MLA: latent, then rope)."""
        offset = self.offset + start * DTYPE_BYTES[self.dtype]
        return replace(self, offset=offset, shape=(*self.shape[:-1], stop - start))

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class NativeView:
    """The tensor an attention backend of this kind expects for one layer ("kv_cache")."""

    buffer: int
    dtype: str
    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class PagePlace:
    """Where a layer's pages are.

    order: the axes from outermost to innermost. With `block_stride` set it starts with B, and the
    page of block b is at offset + b * block_stride (pages may be padded, or lie between other
    layers' pages); with None every stride follows from the order, over `num_layers` layers of
    which this one is `layer_index`.
    """

    layer: str
    buffer: int
    offset: int  # bytes
    num_blocks: int  # manager blocks
    block_size: int  # tokens of a manager block
    kernel_block_size: int  # divides block_size
    order: str
    block_stride: int | None = None  # bytes from one manager block to the next
    num_layers: int = 1
    layer_index: int = 0


def axis_strides(
    order: str, sizes: Mapping[str, int], widths: Sequence[int]
) -> list[tuple[int, dict[str, int]]]:
    """Offset and strides, in bytes, of each array of a page laid out in `order`.

    sizes: elements along every axis but K and D. widths: bytes of one head of each array. K is
    where the arrays follow one another: axes inside it are strided by their own array, axes
    outside by all.

    >>> axis_strides("BKND", {"B": 8, "N": 4}, [6, 2])
    [(0, {'N': 6, 'B': 32}), (24, {'N': 2, 'B': 32})]
    """
    outer, inner = order.rstrip("D").split("K") if "K" in order else ("", order.rstrip("D"))
    results, start = [], 0
    for width in widths:
        strides, step = {}, width
        for axis in reversed(inner):
            strides[axis] = step
            step *= sizes[axis]
        results.append((start, strides))
        start += step
    step = start
    for axis in reversed(outer):
        for _, strides in results:
            strides[axis] = step
        step *= sizes[axis]
    return results


class LayoutOptions(BaseModel):
    """conf/layout/*.yaml. kernel_block_size: tokens; auto: the largest that divides the block."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    name: str
    kernel_block_size: Annotated[int, Field(ge=1)] | Literal["auto"]


class LayoutChoice(ABC):
    """What `layout=<name>` makes: the layouts that a layer may be given."""

    Options: ClassVar[type[LayoutOptions]] = LayoutOptions

    def __init__(self, options: LayoutOptions | None = None) -> None:
        self.options = options

    def __eq__(self, other: object) -> bool:
        """Of the same kind, with the same options: it makes the same addresses."""
        return type(self) is type(other) and self.options == getattr(other, "options", None)

    def __hash__(self) -> int:
        return hash((type(self), self.options))

    @property
    def kernel_block_size(self) -> int | None:
        """Tokens, where the user set them."""
        asked = "auto" if self.options is None else self.options.kernel_block_size
        return None if asked == "auto" else asked

    @abstractmethod
    def candidates(self, movable: bool = False) -> tuple[Layout, ...]:
        """In order of preference: a layer takes the first that holds its arrays. movable: for a
        placement that fixes heads and tokens too."""


class Layout(LayoutChoice):
    """One order of K, V, tokens and heads.

    attention_backend: the kind of engine attention backend that reads it. arrays: names of the
    arrays a page must have (None: exactly one array, whatever its name).
    page_order: inside one page. tensor_order: a tensor that belongs to one layer, or to layers that
    all split it alike. cross_order: all layers of a uniform model in one buffer.
    native_order: the dimensions of the attention backend's tensor (C: K and V as one content).
    """

    name: ClassVar[str]
    attention_backend: ClassVar[str]
    arrays: ClassVar[tuple[str, ...] | None] = ("k", "v")
    page_order: ClassVar[str]
    tensor_order: ClassVar[str]
    cross_order: ClassVar[str]
    native_order: ClassVar[str]
    # A token's content lies together, which is all that a lettered placement moves.
    is_movable: ClassVar[bool] = False
    # Kernel block sizes the attention kernels take, in tokens: these, or any multiple.
    kernel_block_sizes: ClassVar[tuple[int, ...]] = ()
    kernel_block_multiple: ClassVar[int] = 16
    # Tokens that a block is a multiple of where attention layers share their pages with states.
    state_alignment: ClassVar[int] = 16

    def candidates(self, movable: bool = False) -> tuple[Layout, ...]:
        return (self,)

    def supports_kernel_block(self, num_tokens: int) -> bool:
        if self.kernel_block_sizes:
            return num_tokens in self.kernel_block_sizes
        return num_tokens % self.kernel_block_multiple == 0

    def kernel_block_choices(self) -> str:
        """In words, for an error."""
        if self.kernel_block_sizes:
            return f"one of {', '.join(map(str, self.kernel_block_sizes))}"
        return f"a multiple of {self.kernel_block_multiple}"

    def refuses(self, spec: KVCacheSpec) -> str:
        """Why this layout cannot hold that spec's arrays ("" if it can)."""
        arrays = spec.page_arrays()
        names = ", ".join(array.name for array in arrays)
        if not all(array.per_token for array in arrays):
            return f"{spec.kind} stores states ({names}), not tokens"
        if self.arrays is None:
            single = len(arrays) == 1 and arrays[0].num_heads == 1
            return "" if single else f"{spec.kind} stores {names}, not one row a token"
        if tuple(array.name for array in arrays) != self.arrays:
            return f"{spec.kind} stores {names}, not {', '.join(self.arrays)}"
        return ""

    def views(self, spec: KVCacheSpec, place: PagePlace) -> tuple[ArrayView, ...]:
        """The arrays of one layer, [B', N', H, D] each."""
        arrays = spec.page_arrays()
        split = place.block_size // place.kernel_block_size
        apart = _ids_apart(spec, place, split)
        sizes = {
            "L": place.num_layers,
            "B": max(0, place.num_blocks - 1) * apart + split if place.num_blocks else 0,
            "H": arrays[0].num_heads,
            "N": place.kernel_block_size // arrays[0].tokens_per_row,
        }
        placed = axis_strides(place.order, sizes, [_row_bytes(array) for array in arrays])
        views = []
        for array, (start, strides) in zip(arrays, placed, strict=True):
            block = strides["B"] if place.block_stride is None else place.block_stride // apart
            layer = place.layer_index * strides.get("L", 0)
            views.append(
                ArrayView(
                    layer=place.layer,
                    array=array.name,
                    buffer=place.buffer,
                    dtype=array.dtype,
                    per_token=True,
                    offset=place.offset + layer + start,
                    shape=(sizes["B"], sizes["N"], sizes["H"], array.width),
                    strides=(block, strides["N"], strides["H"], DTYPE_BYTES[array.dtype]),
                    ids_apart=apart if apart != split else None,
                )
            )
        return tuple(views)

    def native_view(self, views: Sequence[ArrayView]) -> NativeView | None:
        """The single tensor the attention backend expects; None if no one strided tensor is it
        (K and V of different widths where the backend's shape has one D)."""
        first, last = views[0], views[-1]
        pair = last.offset - first.offset
        same = all(view.shape == first.shape and view.strides == first.strides for view in views)
        if "K" in self.native_order and not same:
            return None
        widths = sum(view.shape[3] for view in views)
        axes = {axis: (first.shape[i], first.strides[i]) for i, axis in enumerate("BNHD")}
        axes |= {"K": (len(views), pair), "C": (widths, first.strides[3])}
        return NativeView(
            buffer=first.buffer,
            dtype=first.dtype,
            offset=first.offset,
            shape=tuple(axes[axis][0] for axis in self.native_order),
            strides=tuple(axes[axis][1] for axis in self.native_order),
        )


def kernel_page_bytes(spec: KVCacheSpec, kernel_block_size: int) -> int:
    """Bytes that one kernel block of a layer takes, without padding."""
    return sum(array.num_bytes(kernel_block_size) for array in spec.page_arrays())


def _ids_apart(spec: KVCacheSpec, place: PagePlace, split: int) -> int:
    """Kernel blocks from one block to the next; a block that is not split is one."""
    if split == 1 or place.block_stride is None:
        return split
    return place.block_stride // kernel_page_bytes(spec, place.kernel_block_size)


def _row_bytes(array: PageArray) -> int:
    return array.width * DTYPE_BYTES[array.dtype]
