"""`backend=torch`: PyTorch operations, slow and obvious; the kernels are tested against it.

B' kernel blocks of N' tokens, H heads, D head size, T new tokens, R requests. Bytes are moved as
uint8 whatever the dtype, so that NaN payloads survive and every dtype is one code path.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict

from kvpipe.backends._slots import last_of_each_slot
from kvpipe.backends.base import Array, Backend, Buffer, MemoryInfo
from kvpipe.backends.host_memory import host_memory
from kvpipe.errors import DoesNotFit, Problem
from kvpipe.layouts.base import ArrayView, NativeView
from kvpipe.specs.base import DTYPE_BYTES

# kvpipe's dtype -> torch's. The names that differ are the fp8 formats'.
TORCH_NAMES = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
FP8_MAX = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


class TorchBackend(Backend):
    class Options(BaseModel):
        """device: auto (cuda where torch sees one, else cpu), or a torch device."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        device: str

        @property
        def gpu_index(self) -> int:
            kind, _, index = self.device.partition(":")
            return int(index) if kind == "cuda" and index.isdigit() else 0

    name = "torch"

    def __init__(self, options: Options | None = None) -> None:
        import torch

        self.torch = torch
        wanted = options.device if options else "cpu"
        if wanted == "auto":
            wanted = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(wanted)
        self._out_of_range: list[str] = []
        self._num_out_of_range = 0

    @classmethod
    def problems(cls) -> list[Problem]:
        if find_spec("torch") is not None:
            return []
        knob = "pip install 'kvpipe[torch]', or choose backend=meta"
        return [Problem("backend", "PyTorch to be installed", "no torch", knob)]

    def describe(self) -> dict[str, str]:
        return {
            "backend": self.name,
            "device": str(self.device),
            "build": f"torch {version('torch')}",
        }

    # --- memory ---------------------------------------------------------------------------------
    def memory_info(self) -> MemoryInfo:
        if self.device.type == "cpu":
            return host_memory()
        free, total = self.torch.cuda.mem_get_info(self.device)
        return MemoryInfo(total_bytes=total, free_bytes=free, source="torch.cuda.mem_get_info")

    def allocate(self, num_bytes: int) -> Buffer:
        """On the CPU anonymous pages, which the kernel zeroes when they are first touched: a cache
        that is mostly empty costs neither time nor memory."""
        if self.device.type == "cpu":
            free = host_memory().free_bytes
            if num_bytes > free:
                raise _refused(num_bytes, free)
            if num_bytes == 0:
                return Buffer(num_bytes=0, data=self.torch.empty(0, dtype=self.torch.uint8))
            try:
                pages = mmap.mmap(-1, num_bytes)
            except OSError as error:
                raise _refused(num_bytes, free) from error
            return Buffer(
                num_bytes=num_bytes, data=self.torch.frombuffer(pages, dtype=self.torch.uint8)
            )
        try:
            zeros = self.torch.zeros(num_bytes, dtype=self.torch.uint8, device=self.device)
        except self.torch.OutOfMemoryError as error:
            raise _refused(num_bytes, self.memory_info().free_bytes) from error
        return Buffer(num_bytes=num_bytes, data=zeros)

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, TORCH_NAMES.get(name, name))

    def array(self, buffer: Buffer, view: ArrayView | NativeView) -> Array:
        size = DTYPE_BYTES[view.dtype]
        whole = buffer.data[: buffer.num_bytes // size * size].view(self.dtype(view.dtype))
        strides = [stride // size for stride in view.strides]
        # as_strided counts from the storage's start; a buffer may be a slice of a caller's tensor.
        start = whole.storage_offset() + view.offset // size
        return whole.as_strided(view.shape, strides, start)

    def _bytes(self, buffer: Buffer, view: ArrayView) -> Array:
        """The view with its elements as bytes: [..., D * itemsize] uint8."""
        size = DTYPE_BYTES[view.dtype]
        shape = (*view.shape[:-1], view.shape[-1] * size)
        strides = (*view.strides[:-1], 1)
        return self.array(buffer, replace(view, dtype="uint8", shape=shape, strides=strides))

    # --- operations -----------------------------------------------------------------------------
    def fill(
        self, buffers: Sequence[Buffer], views: Sequence[ArrayView], block_ids: Array, byte: int
    ) -> None:
        ids = self._ints(block_ids)
        for view in views:
            inside = self._inside(ids, view.shape[0], "block", view)
            self._bytes(buffers[view.buffer], view)[ids[inside]] = byte

    def write_kv(
        self, buffer: Buffer, view: ArrayView, new: Array, slot_mapping: Array, scale: float = 1.0
    ) -> None:
        num_blocks, block_size = view.shape[:2]
        slots = last_of_each_slot(self._ints(slot_mapping))
        inside = self._inside(slots, num_blocks * block_size, "slot", view)
        stored = self._stored(new, view.dtype, scale)[inside]
        kept = slots[inside]
        rows = stored.contiguous().view(self.torch.uint8)
        self._bytes(buffer, view)[kept // block_size, kept % block_size] = rows

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
        torch = self.torch
        positions = torch.arange(num_tokens, device=self.device)
        table = self._ints(block_table).reshape(1, -1)
        slots = self.slot_mapping(table, torch.zeros_like(positions), positions, block_size)
        kernel_block = view.shape[1]
        inside = self._inside(slots, view.shape[0] * kernel_block, "slot", view)
        kept = slots[inside]
        stored = self._bytes(buffer, view)[kept // kernel_block, kept % kernel_block]
        rows = torch.zeros((num_tokens, *stored.shape[1:]), dtype=torch.uint8, device=self.device)
        rows[inside] = stored
        typed = rows.view(self.dtype(view.dtype))
        if out_dtype is None or out_dtype == view.dtype:
            return typed
        return (typed.to(torch.float32) * scale).to(self.dtype(out_dtype))

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
        rows = [
            self.gather(buffer, view, table, first + num_tokens, block_size, out_dtype, scale)[
                first:
            ].transpose(0, 1)
            for table, first in zip(block_tables, first_tokens, strict=True)
        ]
        if not rows:
            shape = (0, view.shape[2], num_tokens, view.shape[3])
            return self.torch.empty(shape, dtype=self.dtype(out_dtype or view.dtype))
        return self.torch.stack(rows)

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
        torch, heads, size_v = self.torch, keys[1].shape[2], values[1].shape[3]
        out = query.new_zeros((*query.shape[:2], size_v))
        scales = scales if keys[1].dtype in FP8_MAX else (1.0, 1.0)
        for row, (first, stop) in enumerate(self._ints(spans).tolist()):
            table = self._ints(block_tables)[row]
            held = (table >= 0) & (table * block_size < keys[1].shape[0] * keys[1].shape[1])
            seen = held.repeat_interleave(block_size)[first:stop]
            k, v = (
                self.gather(*where, table, stop, block_size, "float32", scale)[first:][seen]
                for where, scale in zip((keys, values), scales, strict=True)
            )
            if len(k):
                q = query[row].float().reshape(heads, -1, query.shape[2])
                weights = torch.einsum("hgd,thd->hgt", q * scaling, k).softmax(-1)
                out[row] = torch.einsum("hgt,thd->hgd", weights, v).flatten(0, 1).to(query.dtype)
        return out

    def copy_blocks(
        self,
        buffers: Sequence[Buffer],
        views: Sequence[ArrayView],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        targets = [dst for _, dst in pairs]
        clash = {src for src, dst in pairs if src != dst} & set(targets)
        if clash or len(set(targets)) != len(targets):
            first = min(clash) if clash else next(t for t in targets if targets.count(t) > 1)
            raise ValueError(f"block {first} is a destination and part of another pair")
        both = self._ints(pairs).reshape(-1, 2)
        for view in views:
            low = self._inside(both[:, 0], view.shape[0], "block", view)
            low &= self._inside(both[:, 1], view.shape[0], "block", view)
            blocks = self._bytes(buffers[view.buffer], view)
            blocks[both[low, 1]] = blocks[both[low, 0]]

    def slot_mapping(
        self, block_table: Array, request_index: Array, positions: Array, block_size: int
    ) -> Array:
        table = self._ints(block_table)
        rows, columns = self._ints(request_index), self._ints(positions) // block_size
        inside = self._inside(rows, table.shape[0], "request", None)
        inside &= self._inside(columns, table.shape[1], "block index", None)
        slots = self.torch.full_like(columns, -1)
        blocks = table[rows[inside], columns[inside]]
        offsets = self._ints(positions)[inside] % block_size
        slots[inside] = self.torch.where(blocks < 0, -1, blocks * block_size + offsets)
        return slots

    def pack(
        self, buffers: Sequence[Buffer], views: Sequence[ArrayView], block_ids: Sequence[int]
    ) -> Array:
        ids = self._ints(block_ids)
        parts = []
        for view in views:
            inside = self._inside(ids, view.shape[0], "block", view)
            parts.append(self._bytes(buffers[view.buffer], view)[ids[inside]].reshape(-1))
        empty = self.torch.empty(0, dtype=self.torch.uint8, device=self.device)
        return self.torch.cat([empty, *parts]).cpu()

    def unpack(
        self,
        buffers: Sequence[Buffer],
        views: Sequence[ArrayView],
        block_ids: Sequence[int],
        packed: Array,
    ) -> None:
        ids, start = self._ints(block_ids), 0
        packed = packed.to(self.device)
        for view in views:
            blocks = self._bytes(buffers[view.buffer], view)
            inside = self._inside(ids, view.shape[0], "block", view)
            shape = (len(ids[inside]), *blocks.shape[1:])
            count = blocks[0].numel() * shape[0]
            blocks[ids[inside]] = packed[start : start + count].reshape(shape)
            start += count

    def check(self) -> None:
        if not self._num_out_of_range:
            return
        first, count = self._out_of_range[0], self._num_out_of_range
        self._out_of_range, self._num_out_of_range = [], 0
        raise IndexError(f"{first}; {count} out of range since the last check")

    # --- shared -----------------------------------------------------------------------------------
    def _ints(self, values: Any) -> Array:
        return self.torch.as_tensor(values, dtype=self.torch.int64, device=self.device)

    def _inside(self, index: Array, limit: int, what: str, view: ArrayView | None) -> Array:
        """[T] bool: 0 <= index < limit. Below zero is skipped, past the end counted for `check`."""
        beyond = index >= limit
        count = int(beyond.sum())
        if count:
            where = f" of '{view.array}' in {view.layer}" if view else ""
            first = int(index[beyond][0])
            self._out_of_range.append(f"{what} {first} is past the last one, {limit - 1}{where}")
            self._num_out_of_range += count
        return (index >= 0) & ~beyond

    def _stored(self, new: Array, dtype: str, scale: float) -> Array:
        """new [T, H, D] as it is stored. fp8: new / scale in float32, clamped to the format's
        largest number (infinities too), then rounded by torch's cast; NaN stays NaN."""
        target = self.dtype(dtype)
        if new.dtype == target:
            return new
        if dtype not in FP8_MAX:
            return new.to(target)
        limit = FP8_MAX[dtype]
        return (new.to(self.torch.float32) / scale).clamp(-limit, limit).to(target)


def _refused(num_bytes: int, free_bytes: int) -> DoesNotFit:
    return DoesNotFit(
        f"allocation: {num_bytes:,} bytes asked for, {free_bytes:,} free; backend=meta plans "
        "without memory",
        needed_bytes=(num_bytes,),
        available_bytes=(free_bytes,),
        stage="allocation",
    )


PLUGIN = TorchBackend
