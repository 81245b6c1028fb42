"""A layout: the order of K, V, tokens and heads inside a layer's pages, as byte strides.

B blocks, N tokens in a kernel block, H heads, D head size. A layout answers with views, never with
memory; the same views are used by every backend, by the reports and by the slow self-proof.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from kvpipe.specs.base import KVCacheSpec


@dataclass(frozen=True, kw_only=True)
class ArrayView:
    """One typed array of one layer inside one buffer: all a kernel needs to know about it.

    Token arrays (K, V, a latent row): shape [B', N', H, D] over B' kernel blocks of N' tokens, and
    element (b, n, h, c) lies at
        offset + b * strides[0] + n * strides[1] + h * strides[2] + c * itemsize   (bytes)
    where slot s is block s // N', token s % N'.
    State arrays: shape [B, *state_shape]; block b at offset + b * strides[0], the rest contiguous.
    """

    layer: str
    array: str  # "k", "v", "latent", "conv", "ssm", ...
    buffer: int  # index of the tensor in KVCacheConfig.tensors
    dtype: str
    per_token: bool
    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, one a dimension


@dataclass(frozen=True, kw_only=True)
class NativeView:
    """The tensor an attention backend of this kind expects for one layer ("kv_cache")."""

    buffer: int
    dtype: str
    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes


@dataclass(frozen=True, kw_only=True)
class PagePlace:
    """Where a layer's pages are: page of block b is page_size bytes at offset + b * block_stride.

    whole_tensor: this layer's pages fill the tensor side by side, and every other layer that shares
    the tensor arranges its pages the same way, so that a layout may put K of all blocks before V.
    """

    layer: str
    buffer: int
    offset: int
    block_stride: int
    num_blocks: int
    page_size_bytes: int
    whole_tensor: bool
    kernel_block_size: int


class Layout(ABC):
    """One order. `attention_backend`: the kind of engine attention backend that reads it."""

    name: ClassVar[str]
    attention_backend: ClassVar[str]
    # Kernel block sizes this layout's kernels take: any multiple of `kernel_block_multiple`.
    kernel_block_multiple: ClassVar[int] = 16

    @abstractmethod
    def refuses(self, spec: KVCacheSpec) -> str:
        """Why this layout cannot hold that spec's arrays ("" if it can)."""

    @abstractmethod
    def views(self, spec: KVCacheSpec, place: PagePlace) -> tuple[ArrayView, ...]:
        """The arrays of one layer."""

    @abstractmethod
    def native_view(self, spec: KVCacheSpec, place: PagePlace) -> NativeView | None:
        """The single tensor the attention backend expects; None if no one strided tensor is it."""
