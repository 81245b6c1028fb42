"""The paged store behind a transformers cache: requests, steps, slots, block tables.

One row of the batch is one request of the block manager. A left-padded row that starts at column s
has no token before s: token p of the request is column s + p of the batch, and padding is never
stored. B rows, T columns of a step, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvpipe.blocks import BlockManager
from kvpipe.blocks.transfer import BlockMover
from kvpipe.cache.buffers import KVBuffers
from kvpipe.errors import ConfigError, Problem

Ints = npt.NDArray[np.int64]


@dataclass
class Step:
    """One forward pass. pads [B]: columns of this step that are padding, row by row. padded:
    whether there is any."""

    num_columns: int
    pads: Ints
    padded: bool
    slots: dict[int, Any] = field(default_factory=dict)
    tables: dict[tuple[int, int, int], GatherTable] = field(default_factory=dict)


@dataclass(frozen=True)
class GatherTable:
    """block_table [B, width] int32: blocks of each row, -1 where none is held; the wanted columns
    of row b are [offsets[b], offsets[b] + num_columns) of its width * block_size tokens."""

    block_table: Any
    offsets: list[int]


@dataclass(frozen=True)
class RowSpan:
    """What one row reads in this step: tokens [first, stop) of its request. pads: columns of the
    step that are padding. column: of `first`, among the columns the model's mask describes."""

    first: int
    stop: int
    pads: int
    column: int


class PagedStore:
    """Requests of one batch over a bound cache. `begin` and `end` enclose every forward pass."""

    def __init__(self, manager: BlockManager, buffers: KVBuffers, prefix_caching: bool) -> None:
        self.manager, self.buffers, self.backend = manager, buffers, buffers.backend
        self.prefix_caching = prefix_caching
        self._copy = BlockMover(buffers).copy
        self.device = buffers.buffers[0].data.device if buffers.buffers else "cpu"
        self.rows: list[int] = []  # request of each row
        self.starts = np.zeros(0, np.int64)
        self.seen = 0  # columns stored by earlier steps
        self.told: list[int] = []  # tokens of each row that the manager knows by id
        self.step: Step | None = None
        self.encoder_columns: list[Ints] = []  # of each row: encoder positions that are tokens
        self.peak_blocks = 0
        # Direct mode: the layer written last, the layers that others read, and, of this pass, the
        # layers whose pages must be read by the attention function, and were.
        self.last_updated: Any = None
        self.shared: dict[int, Any] = {}
        self.to_read: set[str] = set()
        self.direct_reads: set[str] = set()
        self._open: list[Any] = []  # copies of states that must be written back
        self._next_request = 0
        # Of a group: what its last gather table was made of, and the table.
        self._last_tables: dict[int, tuple[Any, Any]] = {}

    @property
    def starts(self) -> Ints:
        """[B] first column of each row that is a token."""
        return self._starts

    @starts.setter
    def starts(self, starts: Ints) -> None:
        self._starts = starts
        self._last_start = int(starts.max(initial=-1))
        self._no_pads = np.zeros_like(starts)

    @property
    def all_started(self) -> bool:
        """Whether every row has stored a token: none has padding any more."""
        return self._last_start < self.seen

    # --- life of a batch -------------------------------------------------------------------------
    def seat(
        self,
        starts: Ints,
        prompts: Sequence[Sequence[int]] | None = None,
        encoder_columns: Sequence[Ints] | None = None,
    ) -> list[int]:
        """One request a row; tokens of each that are cached already."""
        assert not self.rows, "the batch is seated once"
        self.starts = np.asarray(starts, np.int64)
        self.encoder_columns = list(encoder_columns or [])
        cached = []
        for row in range(len(self.starts)):
            request = self._new_request()
            prompt = prompts[row] if prompts is not None else None
            encoder = len(self.encoder_columns[row]) if self.encoder_columns else None
            cached.append(self.manager.add_request(request, prompt, encoder_tokens=encoder))
            self.rows.append(request)
            self.told.append(len(prompt) if prompt is not None else 0)
        return cached

    def release(self) -> None:
        """Give every block back; what prefix caching keeps can be hit by the next batch."""
        for request in self.rows:
            self.manager.free(request)
        self.rows, self.starts, self.seen, self.step = [], np.zeros(0, np.int64), 0, None
        self.told, self.encoder_columns = [], []

    def select_rows(self, indices: Sequence[int]) -> None:
        """The new row i is the old row indices[i] (beam search). The first heir of a row takes its
        request; further ones are forks that share blocks until one of them writes."""
        old_rows, old_starts = self.rows, self.starts
        kept = set(indices)
        for row, request in enumerate(old_rows):
            if row not in kept:
                self.manager.free(request)
        rows, taken = [], set()
        for row in indices:
            if row not in taken:
                taken.add(row)
                rows.append(old_rows[row])
                continue
            rows.append(self._new_request())
            self.manager.fork(old_rows[row], rows[-1])
        self.rows, self.starts = rows, old_starts[list(indices)]
        self.told = [self.told[row] for row in indices]
        if self.encoder_columns:
            self.encoder_columns = [self.encoder_columns[row] for row in indices]

    def _new_request(self) -> int:
        self._next_request += 1
        return self._next_request

    # --- steps -----------------------------------------------------------------------------------
    def begin(self, num_columns: int, token_ids: Ints | None) -> None:
        """Blocks for the next num_columns columns of every row. After OutOfBlocks `release` it all:
        rows before the one that ran short have theirs already.

        token_ids [B, T]: needed with prefix caching."""
        padded = self._last_start > self.seen
        pads = np.clip(self.starts - self.seen, 0, num_columns) if padded else self._no_pads
        self.step = Step(num_columns, pads, padded)
        self.manager.begin_step()
        ids = token_ids if self.prefix_caching else None
        if ids is None and num_columns == 1 and self.all_started:
            self._copy(self.manager.append(self.rows))
        else:
            self._allocate(num_columns - pads, ids)
        self.peak_blocks = max(self.peak_blocks, self.blocks_held())

    def _allocate(self, new: Ints, ids: Ints | None) -> None:
        """Blocks for new [B] tokens of the rows."""
        for row in np.flatnonzero(new).tolist():
            tokens = self._unknown_tokens(row, ids)
            # Copied at once: a block that is copied from may be handed to the next row.
            request, count = self.rows[row], int(new[row])
            self._copy(self.manager.allocate(request, count, token_ids=tokens))

    def _unknown_tokens(self, row: int, ids: Ints | None) -> list[int]:
        """Tokens of this step beyond those that the manager was told of before."""
        if ids is None:
            return []
        stored = max(0, self.seen - int(self.starts[row]))
        own: list[int] = ids[row, int(self.current().pads[row]) :].tolist()
        told = self.told[row]
        self.told[row] = max(told, stored + len(own))
        return own[max(0, told - stored) :]

    def open_states(self, states: Any) -> None:
        """A layer works on a copy of its states: the layer before it is done with its own."""
        self.flush_states(but=states.layer)
        self._open.append(states)

    def flush_states(self, but: str = "") -> None:
        """Write copies of states back to their pages."""
        if not self._open:
            return
        for states in self._open:
            if states.layer != but:
                states.flush()
        self._open = [states for states in self._open if states.layer == but]

    def end(self) -> None:
        assert self.step is not None
        self.flush_states()
        self._check_read()
        self.manager.end_step()
        self.seen += self.step.num_columns
        self.step = None

    def _check_read(self) -> None:
        """In direct mode a model that computes attention elsewhere has computed with stand-ins."""
        missed = sorted(self.to_read - self.direct_reads)
        self.last_updated, self.to_read, self.direct_reads = None, set(), set()
        if missed:
            raise ConfigError(
                Problem(
                    "mode",
                    "attention through AttentionInterface, as 'kvpipe'",
                    f"{missed[0]}, whose pages were not read",
                    "mode=gather, or do not change the attention of a model that is bound directly",
                )
            )

    # --- addresses -------------------------------------------------------------------------------
    def current(self) -> Step:
        if self.step is None:
            raise ConfigError(
                Problem(
                    "binding",
                    "the cache to be used by the model it was bound to",
                    "a call outside of that model's forward pass",
                    "bind(model, plan) makes a cache for one model",
                )
            )
        return self.step

    def slots(self, group: int) -> Any:
        """[T'] slots of the step's real tokens, row by row."""
        import torch

        step = self.current()
        if group not in step.slots:
            slots = torch.from_numpy(self.manager.slot_mapping(group).copy())
            step.slots[group] = slots.to(self.device)
        return step.slots[group]

    def gather_table(self, group: int, first: int, stop: int) -> GatherTable:
        """Where columns [first, stop) of every row lie. Layers of a group ask alike in one step."""
        key = (group, first, stop)
        tables = self.step.tables if self.step is not None else {}
        if key not in tables:
            tables[key] = self._gather_table(group, first - self.starts, stop - first)
        return tables[key]

    def span(self, layer: Any, row: int) -> RowSpan:
        """The tokens of a row that its pages still hold, of those that the layer's mask shows."""
        step, start = self.current(), int(self.starts[row])
        pads = int(step.pads[row])
        shown = layer.first_column(layer.stored - step.num_columns)
        stop = layer.stored - start
        held = self._first_held(layer.arrays.group, row)
        first = max(shown - start, held, 0)
        return RowSpan(first, stop, pads, start + first - shown)

    def _first_held(self, group: int, row: int) -> int:
        """The first token whose block the row still holds."""
        held = self.manager.block_table(group, [self.rows[row]])[0] > 0
        return int(held.argmax()) * self.manager.config.groups[group].block_spec.block_size

    def row_blocks(self, group: int, row: int, first: int, stop: int) -> Ints:
        """Blocks of a row that hold its tokens [first, stop)."""
        size = self.manager.config.groups[group].block_spec.block_size
        ids = self.manager.block_table(group, [self.rows[row]])[0]
        blocks: Ints = ids[first // size : (stop - 1) // size + 1].astype(np.int64)
        return blocks

    def encoder_table(self, group: int) -> GatherTable:
        """Where the encoder's tokens of every row lie."""
        longest = max(map(len, self.encoder_columns), default=0)
        return self._gather_table(group, np.zeros(len(self.rows), np.int64), longest)

    def _gather_table(self, group: int, positions: Ints, num_tokens: int) -> GatherTable:
        return self._table(group, self.manager.block_table(group, self.rows), positions, num_tokens)

    def table_of(self, group: int, entries: Ints, first: int, stop: int) -> GatherTable:
        """The same as `gather_table`, through other entries than the group's blocks."""
        return self._table(group, entries, first - self.starts, stop - first)

    def _table(self, group: int, held: Any, positions: Ints, num_tokens: int) -> GatherTable:
        """Steps that decode read through one table until a row gets a block or loses one."""
        size = self.manager.config.groups[group].block_spec.block_size
        spans = [divmod(first, size) for first in positions.tolist()]  # below zero for padding
        first = [block for block, _ in spans]
        # Of a row of no tokens: none, as of no rows.
        width = max((offset + num_tokens - 1) // size for _, offset in spans) + 1 if spans else 0
        made_of = held.tobytes(), held.itemsize, first, width
        known = self._last_tables.get(group)
        if known is None or known[0] != made_of:
            known = made_of, self._blocks_at(held, np.array(first)[:, None] + np.arange(width))
            self._last_tables[group] = known
        return GatherTable(known[1], [offset for _, offset in spans])

    def _blocks_at(self, held: Any, index: Ints) -> Any:
        """[B, width] int32, the held blocks at those indices of each row, -1 outside."""
        import torch

        inside = (index >= 0) & (index < held.shape[1])
        safe = np.clip(index, 0, held.shape[1] - 1)
        ids = np.where(inside, np.take_along_axis(held, safe, axis=1), -1)
        return torch.from_numpy(ids.astype(np.int32)).to(self.device)

    def state_blocks(self, group: int) -> list[int]:
        """[B] block of each row's running state; -1 before the row's first token."""
        return [int(ids[0]) for ids in self.manager.block_table(group, self.rows)]

    # --- accounts --------------------------------------------------------------------------------
    def blocks_held(self) -> int:
        """Blocks that this batch holds; one that several rows share counts once."""
        pool = self.manager.pool
        return pool.num_blocks - 1 - pool.num_free

    def bytes_held(self) -> int:
        return self.blocks_held() * self.manager.config.bytes_per_block
