"""The operations of a backend whose work is done by kv_cache.cu, wherever the kernels run.

`host` and `cupy` differ in three things only: where memory comes from, how a kernel is called
(`prepare`), and how bytes reach host memory. Everything in between, from strides to the arguments
of a launch, is here and in the plans, so that tests on a CPU run the lines a GPU will run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvpipe.backends._grid import MAX_GRID_Y, MAX_ROWS, THREADS, grid_x, lanes_and_rows
from kvpipe.backends._launcher import Launcher
from kvpipe.backends._pages import PageTable, check_extent, page_table
from kvpipe.backends._slots import last_of_each_slot
from kvpipe.backends.attention import AttentionPlan
from kvpipe.backends.base import Array, Buffer
from kvpipe.backends.gather import GatherPlan
from kvpipe.backends.write import WritePlan
from kvpipe.layouts.base import ArrayView


class KernelBackend(Launcher):
    """Operations as kernel launches."""

    # --- write_kv ---------------------------------------------------------------------------------
    def plan_write(
        self,
        targets: Sequence[tuple[Buffer, ArrayView]],
        dtype: Any,
        scales: Sequence[float] = (1.0, 1.0),
    ) -> WritePlan:
        """write_kv of one array, or of K and V in one launch, checked once. See WritePlan.

        dtype: torch dtype of the new rows. scales: one a target, for fp8.
        """
        return WritePlan(self, targets, dtype, scales)

    def write_kv(
        self, buffer: Buffer, view: ArrayView, new: Array, slot_mapping: Array, scale: float = 1.0
    ) -> None:
        plan = self._write_plan(((buffer, view),), new.dtype, (scale,))
        plan(plan.converted(new, view), last_of_each_slot(self._slots(slot_mapping)))

    def write_kv_pair(
        self,
        targets: Sequence[tuple[Buffer, ArrayView]],
        new: Sequence[Array],
        slot_mapping: Array,
        scales: Sequence[float] = (1.0, 1.0),
    ) -> None:
        k, v = (view for _, view in targets)
        if k.shape[:2] != v.shape[:2] or k.dtype != v.dtype or new[0].dtype != new[1].dtype:
            super().write_kv_pair(targets, new, slot_mapping, scales)
            return
        plan = self._write_plan(tuple(targets), new[0].dtype, tuple(scales))
        rows = [plan.converted(each, view) for each, view in zip(new, (k, v), strict=True)]
        plan(rows[0], last_of_each_slot(self._slots(slot_mapping)), rows[1])

    def _write_plan(
        self, targets: tuple[tuple[Buffer, ArrayView], ...], dtype: Any, scales: tuple[float, ...]
    ) -> WritePlan:
        places = tuple((b.data.data_ptr(), b.num_bytes, view) for b, view in targets)
        key = ("write", places, dtype, repr(scales))
        return self.remembered(key, lambda: self.plan_write(targets, dtype, scales))

    def _slots(self, slot_mapping: Array) -> Array:
        return self._ints(slot_mapping).contiguous()

    # --- gather -----------------------------------------------------------------------------------
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
        plan = self._gather_plan(buffer, view, block_size, out_dtype, scale)
        return plan(self.table(block_table).contiguous(), num_tokens)

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
        plan = self._gather_plan(buffer, view, block_size, out_dtype, scale)
        return plan.heads_apart(self.table(block_tables).contiguous(), first_tokens, num_tokens)

    def plan_gather_heads(
        self,
        buffer: Buffer,
        view: ArrayView,
        block_size: int,
        out_dtype: str | None = None,
        scale: float = 1.0,
    ) -> Callable[[Array, Sequence[int], int], Array]:
        return self._gather_plan(buffer, view, block_size, out_dtype, scale).heads_apart

    def _gather_plan(
        self, buffer: Buffer, view: ArrayView, block_size: int, out_dtype: str | None, scale: float
    ) -> GatherPlan:
        place = (buffer.data.data_ptr(), buffer.num_bytes, view)
        return self.remembered(
            ("gather", place, block_size, out_dtype, repr(scale)),
            lambda: GatherPlan(self, buffer, view, block_size, out_dtype, scale),
        )

    # --- attention --------------------------------------------------------------------------------
    def plan_attention(
        self,
        keys: tuple[Buffer, ArrayView],
        values: tuple[Buffer, ArrayView],
        num_query_heads: int,
        block_size: int,
        scaling: float,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> AttentionPlan:
        """attend, checked once for one layer. See AttentionPlan."""
        return AttentionPlan(self, keys, values, num_query_heads, block_size, scaling, scales)

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
        heads = query.shape[1]
        places = tuple((b.data.data_ptr(), b.num_bytes, view) for b, view in (keys, values))
        plan = self.remembered(
            ("attend", places, heads, block_size, repr((scaling, scales))),
            lambda: self.plan_attention(keys, values, heads, block_size, scaling, scales),
        )
        tables = self.table(block_tables)
        if tables.stride(1) != 1:
            tables = tables.contiguous()
        spans = self._ints(spans).contiguous()
        longest = int((spans[:, 1] - spans[:, 0]).max()) if len(spans) else 0
        return plan(query, tables, spans, max(longest, 0))

    # --- whole blocks -----------------------------------------------------------------------------
    def fill(
        self, buffers: Sequence[Buffer], views: Sequence[ArrayView], block_ids: Array, byte: int
    ) -> None:
        ids = self._ints(block_ids).reshape(-1).contiguous()
        if len(views) and len(ids):
            table = self._page_table(buffers, views, len(ids))
            words = [ids.data_ptr(), len(ids), byte & 0xFF, self.errors.address]
            self._pages("kv_fill", table, words, len(ids))

    def copy_blocks(
        self,
        buffers: Sequence[Buffer],
        views: Sequence[ArrayView],
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        refuse_clashes(pairs)
        moved = [(src, dst) for src, dst in pairs if src != dst]
        if len(views) and moved:
            listed = self._ints(moved)
            table = self._page_table(buffers, views, len(moved))
            words = [listed.data_ptr(), len(moved), self.errors.address]
            self._pages("kv_copy", table, words, len(moved))

    def pack(
        self, buffers: Sequence[Buffer], views: Sequence[ArrayView], block_ids: Sequence[int]
    ) -> Array:
        held = [block for block in block_ids if block >= 0]
        if not len(views) or not held:
            return self.torch.empty(0, dtype=self.torch.uint8)
        table = self._page_table(buffers, views, len(held))
        ids = self._ints(held)
        size = sum(table.page_bytes) * len(held)
        packed = self.torch.zeros(size, dtype=self.torch.uint8, device=self.device)
        words = [packed.data_ptr(), ids.data_ptr(), len(held), self.errors.address]
        self._pages("kv_pack", table, words, len(held))
        return self.to_host(packed)

    def unpack(
        self,
        buffers: Sequence[Buffer],
        views: Sequence[ArrayView],
        block_ids: Sequence[int],
        packed: Array,
    ) -> None:
        held = [block for block in block_ids if block >= 0]
        if not len(views) or not held:
            return
        table = self._page_table(buffers, views, len(held))
        size = sum(table.page_bytes) * len(held)
        if packed.numel() != size or packed.dtype is not self.torch.uint8:
            raise ValueError(
                f"unpack: {len(held)} blocks of {len(views)} views are {size:,} bytes, "
                f"got {packed.numel():,} of {packed.dtype}"
            )
        staged, ids = packed.to(self.device).contiguous(), self._ints(held)
        words = [staged.data_ptr(), ids.data_ptr(), len(held), self.errors.address]
        self._pages("kv_unpack", table, words, len(held), extra_alignment=staged.data_ptr())

    def to_host(self, packed: Array) -> Array:
        return packed

    def _page_table(
        self, buffers: Sequence[Buffer], views: Sequence[ArrayView], num_listed: int
    ) -> PageTable:
        for view in views:
            check_extent(buffers[view.buffer], view)
        return page_table(buffers, views, num_listed)

    def _pages(
        self,
        operation: str,
        table: PageTable,
        words: list[int],
        num_listed: int,
        extra_alignment: int = 0,
    ) -> None:
        table = table.aligned_to(extra_alignment)
        lines = self.torch.tensor(table.lines, dtype=self.torch.int64, device=self.device)
        lanes, rows = lanes_and_rows(table.row_bytes // table.width)
        for first in range(0, len(lines), MAX_GRID_Y):
            some = lines[first : first + MAX_GRID_Y]
            shape = (grid_x(table.max_rows, rows), min(num_listed, MAX_GRID_Y), len(some))
            arguments = [table.base, some.data_ptr(), *words]
            self.prepare(f"{operation}_v{table.width}", arguments, (*shape, lanes, rows, 1)).run()

    # --- slots ------------------------------------------------------------------------------------
    def slot_mapping(
        self, block_table: Array, request_index: Array, positions: Array, block_size: int
    ) -> Array:
        torch = self.torch
        table = self.table(block_table)
        rows, at = self._slots(request_index), self._slots(positions)
        if rows.shape != at.shape or table.dim() != 2:
            raise ValueError(
                "slot_mapping: block_table [R, max_blocks], request_index [T] and positions [T], "
                f"got {list(table.shape)}, {list(rows.shape)} and {list(at.shape)}"
            )
        slots = torch.empty_like(at)
        if table.stride(1) != 1:
            table = table.contiguous()
        num_requests, max_blocks = table.shape
        if max_blocks * block_size > MAX_ROWS:
            raise ValueError(f"slot_mapping: tables of {max_blocks:,} blocks, too many positions")
        if len(at):
            words = [slots.data_ptr(), table.data_ptr(), table.stride(0), rows.data_ptr(),
                     at.data_ptr(), len(at), num_requests, max_blocks, block_size,
                     self.errors.address]  # fmt: skip
            shape = (grid_x(len(at), THREADS), 1, 1, THREADS, 1, 1)
            self.prepare("kv_slot_mapping", words, shape).run()
        return slots


def refuse_clashes(pairs: Sequence[tuple[int, int]]) -> None:
    """All pairs of one launch run at once: a block that is written may be in no other pair."""
    targets = [dst for _, dst in pairs]
    sources = {src for src, dst in pairs if src != dst}
    clash = [dst for dst, times in Counter(targets).items() if times > 1 or dst in sources]
    if clash:
        raise ValueError(f"block {min(clash)} is a destination and part of another pair")
