"""The contract of a backend: memory, and the operations on a paged cache.

T new tokens, R requests, H heads, D head size. Everything is addressed by `ArrayView` byte strides
(kvpipe/layouts/base.py) over uint8 buffers, so every layout, placement and dtype is one code path.
A slot below zero is padding: skipped. A slot or block past the end is never written or read: it is
counted, and `check()` raises naming the first.
Arrays are torch tensors on the backend's device for every backend that owns memory.
`buffers` is always the whole list, `buffers[view.buffer]` a view's own; `block_ids` count along
each view's own dimension 0. A block below zero is not held: it is skipped, and gathered as zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvpipe.errors import Problem
from kvpipe.layouts.base import ArrayView, NativeView

Array = Any  # torch.Tensor; torch is imported by the backends that need it, not by the contract


@dataclass(frozen=True, kw_only=True)
class MemoryInfo:
    """total and free bytes of the backend's device, and how they were obtained."""

    total_bytes: int
    free_bytes: int
    source: str


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """One allocation. data: uint8 tensor of num_bytes (None on meta)."""

    num_bytes: int
    data: Array


class Backend(ABC):
    """`Options` of a backend that runs on GPUs have a `gpu_index`: which of the visible ones, so
    that planning asks that one for its memory."""

    name: ClassVar[str]
    owns_memory: ClassVar[bool] = True

    @classmethod
    def problems(cls) -> list[Problem]:
        """What is missing here (an extra, a compiler, a driver), each with what to install."""
        return []

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """backend, device and build, for plan.json."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo: ...

    @abstractmethod
    def allocate(self, num_bytes: int) -> Buffer:
        """A zeroed buffer. DoesNotFit when the device refuses."""

    @abstractmethod
    def array(self, buffer: Buffer, view: ArrayView | NativeView) -> Array:
        """A typed, strided view; no copy."""

    @abstractmethod
    def fill(
        self, buffers: Sequence[Buffer], views: Sequence[ArrayView], block_ids: Array, byte: int
    ) -> None:
        """Set every byte of the given blocks of the given views (0xFF: NaN in every dtype)."""

    @abstractmethod
    def write_kv(
        self, buffer: Buffer, view: ArrayView, new: Array, slot_mapping: Array, scale: float = 1.0
    ) -> None:
        """reshape_and_cache of one array: new [T, H, D] to slots [T] (int64). Where view.dtype is
        fp8 and new is not: stored = cast(clamp(new / scale)). Of two tokens with one slot the last
        one is kept."""

    def write_kv_pair(
        self,
        targets: Sequence[tuple[Buffer, ArrayView]],
        new: Sequence[Array],
        slot_mapping: Array,
        scales: Sequence[float] = (1.0, 1.0),
    ) -> None:
        """write_kv of two arrays to the same slots: K and V, or the latent and the rope columns of
        an MLA row (`ArrayView.columns`). A backend with kernels does it in one launch."""
        for (buffer, view), rows, scale in zip(targets, new, scales, strict=True):
            self.write_kv(buffer, view, rows, slot_mapping, scale)

    def plan_write(
        self,
        targets: Sequence[tuple[Buffer, ArrayView]],
        dtype: Any,
        scales: Sequence[float] = (1.0, 1.0),
    ) -> Callable[..., None]:
        """write_kv of one array, or of K and V, for a layer that is written step after step:
        plan(k, slots) or plan(k, slots, v), rows [T, H, D] of torch dtype `dtype`. A backend with
        kernels checks strides and makes its launch here, once."""

        def run(k: Array, slots: Array, v: Array | None = None) -> None:
            if v is None:
                self.write_kv(*targets[0], k, slots, scales[0])
            else:
                self.write_kv_pair(targets, [k, v], slots, scales)

        return run

    @abstractmethod
    def gather(
        self,
        buffer: Buffer,
        view: ArrayView,
        block_table: Array,
        num_tokens: int,
        block_size: int,
        out_dtype: str | None = None,
        scale: float = 1.0,
    ) -> Array:
        """Tokens [0, num_tokens) of one request, [num_tokens, H, D], through block_table
        [max_blocks] (manager block ids of block_size tokens). out_dtype: dequantise fp8 to it
        (times scale)."""

    @abstractmethod
    def gather_heads(
        self,
        buffer: Buffer,
        view: ArrayView,
        block_tables: Array,
        first_tokens: Sequence[int],
        num_tokens: int,
        block_size: int,
        out_dtype: str | None = None,
        scale: float = 1.0,
    ) -> Array:
        """[R, H, num_tokens, D], as dense attention wants it: through row r of block_tables
        [R, max_blocks] the tokens [first_tokens[r], first_tokens[r] + num_tokens) of its blocks."""

    def plan_gather_heads(
        self,
        buffer: Buffer,
        view: ArrayView,
        block_size: int,
        out_dtype: str | None = None,
        scale: float = 1.0,
    ) -> Callable[[Array, Sequence[int], int], Array]:
        """gather_heads of a layer that is read step after step: plan(block_tables, first_tokens,
        num_tokens), block_tables contiguous int32."""

        def run(block_tables: Array, first_tokens: Sequence[int], num_tokens: int) -> Array:
            return self.gather_heads(
                buffer, view, block_tables, first_tokens, num_tokens, block_size, out_dtype, scale
            )

        return run

    @abstractmethod
    def attend(
        self,
        keys: tuple[Buffer, ArrayView],
        values: tuple[Buffer, ArrayView],
        query: Array,
        block_tables: Array,
        spans: Array,
        block_size: int,
        scaling: float,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> Array:
        """Decode attention, softmax(scaling * q K) V in float32: [R, Q, Dv] in the query's dtype.

        query [R, Q, D], query head q reads KV head q // (Q / H); block_tables [R, max_blocks]
        (block_size tokens an entry); spans [R, 2]: each request sees its tokens [first, stop), of
        those the ones whose blocks are held; where none is, zeros. scales: of K and V, for fp8."""

    @abstractmethod
    def copy_blocks(
        self,
        buffers: Sequence[Buffer],
        views: Sequence[ArrayView],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        """Copy block src to dst in every view (block ids of each view's own dimension 0; the caller
        expands manager blocks to kernel blocks). ValueError if a dst is another pair's src or
        dst."""

    @abstractmethod
    def slot_mapping(
        self, block_table: Array, request_index: Array, positions: Array, block_size: int
    ) -> Array:
        """[T] int64: slot of token t of request_index[t] at positions[t]; block_table
        [R, max_blocks] int32, -1 where no block is held: the slot is then -1."""

    @abstractmethod
    def pack(
        self, buffers: Sequence[Buffer], views: Sequence[ArrayView], block_ids: Sequence[int]
    ) -> Array:
        """Those blocks of all views as one contiguous uint8 host tensor, for swapping out: view by
        view, block by block, each block's elements in the order of the view's dimensions."""

    @abstractmethod
    def unpack(
        self,
        buffers: Sequence[Buffer],
        views: Sequence[ArrayView],
        block_ids: Sequence[int],
        packed: Array,
    ) -> None:
        """The inverse of pack, to other or the same block ids."""

    def check(self) -> None:  # noqa: B027  a backend without memory has nothing to check
        """Raise IndexError naming the first slot or block out of range since the last check."""
