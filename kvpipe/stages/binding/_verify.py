"""The self-proof: write ragged requests through every bound layer, read them back another way.

Writing goes through the backend (slot mapping, write_kv, the layer's own views); reading through
`_flat` (block tables and the JSON of the address map). Each row carries bytes that name its layer,
array, request, token and head, so that a row in the wrong place cannot look right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.backends.base import Array, Backend, Buffer
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.allocation.base import KVBuffers
from kvpipe.stages.binding._faults import aliased, swap
from kvpipe.stages.binding._flat import Reader, read_state, read_token
from kvpipe.stages.binding._pieces import Piece, content, pieces_of, row
from kvpipe.stages.binding._requests import ProofRequest, proof_requests
from kvpipe.stages.binding.base import AttentionLayer, VerifyReport
from kvpipe.stages.grouping.base import KVCacheConfig

DIGEST_BUFFER_BYTES = 64 << 20  # up to here the digest is of the whole buffers


class VerifyOptions(BaseModel):
    """max_rows: written an array, at most. max_length: tokens of the longest request.
    inject: a fault that must show (two block ids of a table swapped between writing and reading; a
    write dropped; two layers on the same pages)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    enabled: bool
    inject: Literal["none", "swap", "lost", "alias"]
    num_requests: int = Field(ge=0, le=64)
    max_rows: int = Field(ge=1, le=1 << 20)
    max_length: int = Field(ge=1)
    seed: int


def verify(
    layers: Mapping[str, AttentionLayer],
    config: KVCacheConfig,
    buffers: KVBuffers,
    limits: RequestLimits,
    options: VerifyOptions,
) -> VerifyReport:
    """layers: every bound layer. Leaves the buffers as it found them."""
    backend = buffers.backend
    if not options.enabled:
        return VerifyReport(reason="not asked for")
    if not backend.owns_memory:
        return VerifyReport(reason="no memory")
    requests = proof_requests(
        config, limits, options.num_requests, options.max_length, options.seed
    )
    with _one_thread():
        return _proof(layers, config, buffers, requests, options)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Thousands of small writes: waiting for a second thread costs more than it brings."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _proof(
    layers: Mapping[str, AttentionLayer],
    config: KVCacheConfig,
    buffers: KVBuffers,
    requests: Sequence[ProofRequest],
    options: VerifyOptions,
) -> VerifyReport:
    pieces = list(pieces_of(layers, config, requests, options.max_rows, options.seed))
    if not pieces:
        return VerifyReport(reason="nothing to store, or no request fits")
    backend = buffers.backend
    targets = aliased(layers) if options.inject == "alias" else {}
    slots = _slots(backend, pieces, requests, buffers)
    lost = pieces[len(pieces) // 2] if options.inject == "lost" else None
    for piece in pieces:
        _write(piece, requests, slots, targets, buffers, dropped=piece is lost)
    backend.check()
    tables = [[dict(table) for table in request.tables] for request in requests]
    if options.inject == "swap":
        swap(tables, pieces)
    rows, mismatches, digest = _read_back(pieces, tables, buffers)
    mismatches += sum(not _in_place(layer, buffers) for layer in layers.values())
    whole = sum(buffer.num_bytes for buffer in buffers.buffers) <= DIGEST_BUFFER_BYTES
    if whole:
        digest = sha256()
        for buffer in buffers.buffers:
            digest.update(memoryview(buffer.data.cpu().numpy()))
    for piece in pieces:
        _write(piece, requests, slots, targets, buffers, byte=buffers.init_byte)
    return VerifyReport(
        layers=len({piece.view.layer for piece in pieces}),
        tokens=len({(p.request, i) for p in pieces if p.view.per_token for i in p.positions}),
        rows=rows,
        mismatches=mismatches,
        digest=digest.hexdigest(),
        digest_of="buffers" if whole else "rows",
        inject=options.inject,
    )


# --- writing --------------------------------------------------------------------------------------
def _write(
    piece: Piece,
    requests: Sequence[ProofRequest],
    slots: Mapping[Any, Array],
    targets: Mapping[tuple[str, str], ArrayView],
    buffers: KVBuffers,
    *,
    dropped: bool = False,
    byte: int | None = None,
) -> None:
    """Through the backend. dropped: all but the last token. byte: that, instead of the rows."""
    backend = buffers.backend
    view = targets.get((piece.view.layer, piece.view.array), piece.view)
    table = requests[piece.request].tables[piece.group]
    new = _tensor(content(piece, byte), buffers.buffers[view.buffer])
    if not view.per_token:
        ids = [table[index] for index in piece.positions]
        if dropped:
            ids[-1] = -1
        kept = [i for i, block in enumerate(ids) if block >= 0]
        packed = new.reshape(len(ids), -1)[kept].reshape(-1).cpu()
        backend.unpack(buffers.buffers, [view], [ids[i] for i in kept], packed)
        return
    where = slots[piece.rows_key]
    if dropped:
        where = where.clone()
        where[-1] = -1
    typed = new.view(_dtype(view.dtype)).reshape(len(piece.positions), *view.shape[2:])
    backend.write_kv(buffers.buffers[view.buffer], view, typed, where)


def _slots(
    backend: Backend,
    pieces: Sequence[Piece],
    requests: Sequence[ProofRequest],
    buffers: KVBuffers,
) -> dict[Any, Array]:
    """Slot mappings, by the rows that are written: layers of a group share them."""
    import torch

    found: dict[Any, Array] = {}
    device = buffers.buffers[0].data.device
    for piece in pieces:
        if not piece.view.per_token or piece.rows_key in found:
            continue
        table = requests[piece.request].tables[piece.group]
        ids = torch.full((1, max(table) + 1), -1, dtype=torch.int32)
        ids[0, list(table)] = torch.tensor(list(table.values()), dtype=torch.int32)
        positions = torch.tensor(piece.positions, dtype=torch.int64, device=device)
        first = torch.zeros_like(positions)
        found[piece.rows_key] = backend.slot_mapping(
            ids.to(device), first, positions, piece.block_size
        )
    return found


def _tensor(content: bytes, like: Buffer) -> Array:
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(like.data.device)


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(name, name))


# --- reading back ---------------------------------------------------------------------------------
def _read_back(
    pieces: Sequence[Piece], tables: Sequence[Sequence[Mapping[int, int]]], buffers: KVBuffers
) -> tuple[int, int, Any]:
    """Rows read, rows that are not what belongs there, and a digest of what was read."""
    plan = json.loads(json.dumps(buffers.addresses.to_json()))
    views = {
        (layer["layer"], view["array"]): view for layer in plan["layers"] for view in layer["views"]
    }
    read, digest = reader(buffers.buffers), sha256()
    rows = mismatches = 0
    for piece in pieces:
        table, size = tables[piece.request][piece.group], piece.row_bytes
        name, _, start = piece.view.array.partition("@")
        view = views[piece.view.layer, name]
        if start:
            view = _part(view, int(start), size)
        for position in piece.positions:
            for head in range(piece.num_heads):
                if piece.view.per_token:
                    block = table[position // piece.block_size]
                    found = read_token(view, block, piece.block_size, position, head, read)
                else:
                    found = read_state(view, table[position], read)
                rows += 1
                mismatches += found != row(piece.key(position, head), size)
                digest.update(found)
    return rows, mismatches, digest


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


def _in_place(layer: AttentionLayer, buffers: KVBuffers) -> bool:
    """The tensors that the model was given begin where the layer's views do."""
    caches = layer.kv_cache if isinstance(layer.kv_cache, tuple) else (layer.kv_cache,)
    given = [cache.data_ptr() for cache in caches if cache is not None]
    starts = [buffers.buffers[v.buffer].data.data_ptr() + v.offset for v in layer.views]
    return bool(given) and given == starts[: len(given)]
