"""Two ways to read what the self-proof wrote; they share the block tables and nothing else.

`Gathered` asks the backend, through the layer's own views, as an attention kernel reads; `Flat`
uses the plain numbers of plan.json and the arithmetic of `_flat`. Both give the bytes of a piece,
row after row, head after head.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kvpipe.backends.base import Array, Buffer
from kvpipe.cache.buffers import KVBuffers
from kvpipe.stages.binding._flat import Reader, read_state, read_token
from kvpipe.stages.binding._pieces import Piece

# One a request: one a group: block index -> block id.
Tables = Sequence[Sequence[Mapping[int, int]]]


class Reading(Protocol):
    def __call__(self, piece: Piece) -> bytes: ...


class Gathered:
    """`gather` of the blocks that the piece's rows lie in; `pack` of states."""

    def __init__(self, tables: Tables, buffers: KVBuffers) -> None:
        self._tables, self._buffers = tables, buffers
        self._chosen: dict[Any, tuple[Array, Array]] = {}  # layers of a group share them

    def __call__(self, piece: Piece) -> bytes:
        import torch

        backend, buffers = self._buffers.backend, self._buffers.buffers
        if not piece.view.per_token:
            table = self._tables[piece.request][piece.group]
            ids = [table[index] for index in piece.positions]
            return bytes(backend.pack(buffers, [piece.view], ids).numpy())
        ids, rows = self._blocks(piece)
        buffer, num_rows = buffers[piece.view.buffer], int(rows[-1]) + 1
        found = backend.gather(buffer, piece.view, ids, num_rows, piece.ids.table_rows)
        return bytes(found.view(torch.uint8)[rows].cpu().numpy())

    def _blocks(self, piece: Piece) -> tuple[Array, Array]:
        """The part of the block table that is needed, and which of its rows are the piece's."""
        if piece.rows_key not in self._chosen:
            self._chosen[piece.rows_key] = self._choose(piece)
        return self._chosen[piece.rows_key]

    def _choose(self, piece: Piece) -> tuple[Array, Array]:
        import torch

        table, size = self._tables[piece.request][piece.group], piece.block_size
        indices = sorted({position // size for position in piece.positions})
        place = {index: size * number for number, index in enumerate(indices)}
        rows = [place[position // size] + position % size for position in piece.positions]
        device = self._buffers.buffers[piece.view.buffer].data.device
        ids = torch.tensor([table[i] for i in indices], dtype=torch.int32, device=device)
        steps = torch.arange(piece.ids.held, dtype=torch.int32, device=device)
        return piece.ids.table(ids, steps).contiguous(), torch.tensor(rows, device=device)


class Flat:
    """Byte offsets computed from the JSON of the address map."""

    def __init__(self, tables: Tables, buffers: KVBuffers) -> None:
        self._tables = tables
        plan = json.loads(json.dumps(buffers.addresses.to_json()))
        self._views = {
            (layer["layer"], view["array"]): view
            for layer in plan["layers"]
            for view in layer["views"]
        }
        self._read = reader(buffers.buffers)

    def __call__(self, piece: Piece) -> bytes:
        table, size = self._tables[piece.request][piece.group], piece.block_size
        name, _, start = piece.view.array.partition("@")
        view = self._views[piece.view.layer, name]
        if not piece.view.per_token:
            part = _part(view, int(start), piece.row_bytes)
            return b"".join(read_state(part, table[i], self._read) for i in piece.positions)
        return b"".join(
            read_token(view, table[position // size], size, position, head, self._read)
            for position in piece.positions
            for head in range(piece.num_heads)
        )


def _part(view: Mapping[str, Any], start: int, num_bytes: int) -> dict[str, Any]:
    """num_bytes of a state array, from byte `start` of it."""
    shape = [view["shape"][0], num_bytes]
    return {**view, "dtype": "uint8", "offset": view["offset"] + start, "shape": shape}


def reader(buffers: Sequence[Buffer]) -> Reader:
    """Raw bytes of the buffers, by buffer, offset and count."""
    readers = [_one_reader(buffer.data) for buffer in buffers]
    return lambda buffer, start, num_bytes: readers[buffer](start, num_bytes)


def _one_reader(data: Array) -> Callable[[int, int], bytes]:
    if data.device.type == "cpu":
        raw = memoryview(data.numpy())
        return lambda start, num_bytes: bytes(raw[start : start + num_bytes])

    def copied(start: int, num_bytes: int) -> bytes:
        found: bytes = data[start : start + num_bytes].cpu().numpy().tobytes()
        return found

    return copied
