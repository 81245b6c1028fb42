"""The layers of a transformers cache, written to and read from pages.

B rows, H KV heads, T tokens of a step, L tokens returned, D head size; K and V are [B, H, T, D] in
transformers and [tokens, H, D] in pages. States are in `_states`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.cache_utils import CacheLayerMixin

from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import ArrayView
from kvpipe.layouts.kernel_ids import KernelIds
from kvpipe.stages.binding.transformers_cache._store import GatherTable, PagedStore


class PagedArrays:
    """K and V of one cache layer as the backend sees them: two views, written in one call."""

    def __init__(self, store: PagedStore, layer: str, head_sizes: tuple[int, int]) -> None:
        self.store, self.layer = store, layer
        addresses = store.buffers.addresses.of_layer(layer)
        self.group = addresses.group
        self.block_size = store.manager.config.groups[self.group].block_spec.block_size
        placed = self._placed(addresses.views)
        self.views = self._pair(placed, head_sizes)
        self.ids = self._kernel_ids(placed[0])
        self.is_latent = len(addresses.views) == 1
        buffers = store.buffers.buffers
        self.pages = [store.backend.array(buffers[v.buffer], v) for v in self.views]
        # One plan for every step: strides are checked once, not once a layer and step.
        targets = [(buffers[view.buffer], view) for view in self.views]
        self._targets, self._dtype = targets, self.pages[0].dtype
        self._write = store.backend.plan_write(targets, self._dtype)
        self._readers: dict[str, list[Any]] = {}

    def _placed(self, views: tuple[ArrayView, ...]) -> tuple[ArrayView, ...]:
        """The views that slots and tables count in."""
        return views

    def _kernel_ids(self, view: ArrayView) -> KernelIds:
        """Which blocks of the views are a block of the plan."""
        return view.kernel_ids(self.store.buffers.addresses.blocks_of(self.group))

    @staticmethod
    def _pair(views: tuple[ArrayView, ...], sizes: tuple[int, int]) -> tuple[ArrayView, ArrayView]:
        """K and V; of one latent row the columns of the latent and those of its rope part."""
        if len(views) == 2:
            return views[0], views[1]
        (row,) = views
        return row.columns(0, sizes[0]), row.columns(sizes[0], sum(sizes))

    def write(self, pair: tuple[Any, Any], slots: Any) -> None:
        """pair: K and V, [tokens, H, D] each, to slots [tokens]."""
        slots = self.ids.slots(slots)
        keys, values = _plain(pair[0]), _plain(pair[1])
        if keys.dtype is self._dtype and values.dtype is self._dtype:
            self._write(keys, slots, values)
        else:
            self.store.backend.write_kv_pair(self._targets, [keys, values], slots)

    def read(self, table: GatherTable, num_tokens: int, out_dtype: str) -> tuple[Any, Any]:
        """[B, H, num_tokens, D] of K and V: of every row the tokens from its offset on. Contiguous,
        as transformers' own cache is: other strides take other kernels."""
        readers = self._readers.get(out_dtype)
        if readers is None:
            plan, size = self.store.backend.plan_gather_heads, self.ids.table_rows
            readers = [plan(buffer, view, size, out_dtype) for buffer, view in self._targets]
            self._readers[out_dtype] = readers
        entries = self._entries(table.block_table)
        read_keys, read_values = readers
        keys = read_keys(entries, table.offsets, num_tokens)
        return keys, read_values(entries, table.offsets, num_tokens)

    def _entries(self, blocks: Any) -> Any:
        """A table of blocks as the backend is given it."""
        if self.ids.are_dense:
            return blocks
        steps = torch.arange(self.ids.held, dtype=blocks.dtype, device=blocks.device)
        return self.ids.table(blocks, steps).contiguous()

    def gather(self, table: Any, num_blocks: int, out_dtype: str) -> tuple[Any, Any]:
        """[num_blocks * block_size, H, D] of K and V through a block table [num_blocks]."""
        buffers, backend = self.store.buffers.buffers, self.store.backend
        tokens, size = num_blocks * self.block_size, self.ids.table_rows
        entries = self._entries(table)
        keys, values = (
            backend.gather(buffers[v.buffer], v, entries, tokens, size, out_dtype=out_dtype)
            for v in self.views
        )
        return keys, values

    def read_row(self, row: int, first: int, stop: int, dtype: Any) -> tuple[Any, Any]:
        """[1, H, stop - first, D] of a row's tokens: a view of the pages where its blocks lie side
        by side and the layout has tokens of neighbouring blocks at one distance, else a copy."""
        blocks = self.store.row_blocks(self.group, row, first, stop)
        cuts = (np.flatnonzero(np.diff(blocks) != 1) + 1).tolist()
        runs = list(zip([0, *cuts], [*cuts, len(blocks)], strict=True))
        keys, values = (self._tokens(p, blocks, runs, first, stop).to(dtype) for p in self.pages)
        return keys, values

    def _tokens(self, pages: Any, blocks: Any, runs: Any, first: int, stop: int) -> Any:
        held, apart = self.ids.held, self.ids.apart
        if held != apart:  # no two blocks lie side by side
            runs = [(i, i + 1) for i in range(len(blocks))]
        parts = [pages[blocks[a] * apart : blocks[b - 1] * apart + held] for a, b in runs]
        whole = (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(0, 1)
        skip = first % self.block_size
        return whole[skip : skip + stop - first].transpose(0, 1)[None]


def _plain(new: Any) -> Any:
    """Contiguous, and no part of a graph."""
    return (new.detach() if new.requires_grad else new).contiguous()


class PagedAttentionLayer(CacheLayerMixin):  # type: ignore[misc]
    """Self attention. window: what the model's mask calls sliding_window, chunks included.
    scratched: its pages as steps that use scratch count them (None: it uses none)."""

    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(
        self,
        arrays: PagedArrays,
        dtype: str,
        window: int | None,
        direct: bool,
        scratched: Any | None = None,
    ) -> None:
        self.arrays, self.store, self.dtype_name = arrays, arrays.store, dtype
        self.scratched = scratched
        self.window, self.direct = window, direct
        self.is_sliding, self.sliding_window = window is not None, window
        self.is_initialized = True
        self.stored = 0  # columns, this step's included once it was written

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Pages exist already."""

    @property
    def keys(self) -> Any:
        """[B, H, L, D] gathered anew each time: what the next query would see (None: nothing)."""
        return self.read(self.get_mask_sizes(0)[1], self.stored)[0] if self.stored else None

    @property
    def values(self) -> Any:
        return self.read(self.get_mask_sizes(0)[1], self.stored)[1] if self.stored else None

    def get_seq_length(self) -> int:
        return self.stored

    def get_max_length(self) -> int:
        return self.window or -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that `update` returns for a step of query_length, and the first of them."""
        first = self.first_column(self.stored)
        return self.stored + query_length - first, first

    def first_column(self, stored: int) -> int:
        """The first column that the first query after `stored` columns may see."""
        return max(stored - self.window + 1, 0) if self.window else 0

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Write the step's K and V; return those of every column that a query may see."""
        num_columns = key_states.shape[-2]
        self._check_columns(num_columns)
        length, first = self.get_mask_sizes(num_columns)
        self._write(key_states, value_states)
        self.stored += num_columns
        if self.direct:
            return self._hand_over(key_states, value_states, first, kwargs.get("kwargs"))
        return self.read(first, first + length)

    def _check_columns(self, found: int) -> None:
        """A decoder that puts tokens of its own before the prompt (images) has no mask for them."""
        expected = self.store.current().num_columns
        if found != expected:
            raise ConfigError(
                Problem(
                    "binding",
                    f"a decoder that stores the {expected} columns it is given",
                    f"{found} columns in {self.arrays.layer}",
                    "transformers' own cache is needed for this input",
                )
            )

    def _write(self, keys: Any, values: Any) -> None:
        rows = self._real_rows(keys), self._real_rows(values)
        if self.scratched is not None and self.scratched.in_use:
            self.scratched.save_pushed_out()
            self.scratched.write(rows, self.scratched.slots())
        else:
            self.arrays.write(rows, self.store.slots(self.arrays.group))

    def _real_rows(self, new: Any) -> Any:
        """[tokens, H, D] of the step's real tokens, row by row, of K or V [B, H, T, D]."""
        step = self.store.current()
        if step.num_columns == 1 and not step.padded:
            return new.squeeze(2)
        if not step.padded:
            return new.transpose(1, 2).flatten(0, 1)
        live = torch.from_numpy(np.arange(step.num_columns) >= step.pads[:, None])
        return new.transpose(1, 2)[live.to(new.device)]

    def read(self, first: int, stop: int) -> tuple[Any, Any]:
        """[B, H, stop - first, D] of columns [first, stop); zeros where nothing is stored."""
        if self.scratched is not None and self.scratched.in_use:
            table, arrays = self.scratched.table(first, stop), self.scratched
        else:
            table, arrays = self.store.gather_table(self.arrays.group, first, stop), self.arrays
        keys, values = arrays.read(table, stop - first, self.dtype_name)
        return keys, values

    def _hand_over(self, keys: Any, values: Any, first: int, kwargs: Any) -> tuple[Any, Any]:
        """Direct mode: the attention function reads the pages itself. Its keys are a stub of no
        memory whose length is right; an MLA layer expands what it is given, so it gets T tokens."""
        self.store.last_updated = self
        self.store.to_read.add(self.arrays.layer)
        if isinstance(kwargs, dict):
            kwargs["kvpipe_layer"] = self
        if self.arrays.is_latent:
            return keys, values
        length = self.stored - first
        stubs = [
            each.new_zeros(1).expand(*each.shape[:2], length, each.shape[-1])
            for each in (keys, values)
        ]
        return stubs[0], stubs[1]

    # Rows are the store's: it reorders all layers at once.
    def reorder_cache(self, beam_idx: Any) -> None: ...

    def reset(self) -> None:
        self.stored = 0


class PagedCrossLayer(CacheLayerMixin):  # type: ignore[misc]
    """Cross attention: K and V of the encoder's output, written once; models then read `keys` and
    `values` themselves, so these gather."""

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, arrays: PagedArrays, dtype: str) -> None:
        self.arrays, self.store, self.dtype_name = arrays, arrays.store, dtype
        self.is_initialized = True
        self.stored = 0

    @property
    def keys(self) -> Any:
        return self.read()[0] if self.stored else None

    @property
    def values(self) -> Any:
        return self.read()[1] if self.stored else None

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None: ...

    def get_seq_length(self) -> int:
        return self.stored

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.stored + query_length, 0

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """[B, H, L, D] of the encoder's L columns; only columns that are tokens are stored."""
        columns = self.store.encoder_columns
        pair = tuple(
            torch.cat([each[row].transpose(0, 1)[cols] for row, cols in enumerate(columns)])
            for each in (key_states, value_states)
        )
        self.arrays.write(pair, self.store.slots(self.arrays.group))  # type: ignore[arg-type]
        self.stored = key_states.shape[-2]
        return self.read()

    def read(self) -> tuple[Any, Any]:
        table = self.store.encoder_table(self.arrays.group)
        flat = table.block_table.reshape(-1)
        rows = self.arrays.gather(flat, len(flat), self.dtype_name)
        keys, values = (self._spread(each) for each in rows)
        return keys, values

    def _spread(self, rows: Any) -> Any:
        """[B * W, H, D] -> [B, H, L, D]: every stored token back in its column, zeros elsewhere."""
        columns = self.store.encoder_columns
        whole = rows.reshape(len(columns), -1, *rows.shape[1:])
        out = whole.new_zeros((len(columns), self.stored, *rows.shape[1:]))
        for row, cols in enumerate(columns):
            out[row, torch.from_numpy(cols)] = whole[row, : len(cols)]
        return out.transpose(1, 2).contiguous()

    def reorder_cache(self, beam_idx: Any) -> None: ...

    def reset(self) -> None:
        self.stored = 0
