"""The self-proof: write ragged requests through every bound layer, read them back in two ways.

Writing goes through the block manager (its slot mapping) and the backend (`write_kv` on the layer's
own views); reading through the manager's block tables, once by the backend's `gather`, once by byte
offsets from the JSON of the address map (`_readings`). Each row carries bytes that name its layer,
array, request, token and head, so that a row in the wrong place cannot look right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import groupby
from operator import attrgetter

from kvpipe.backends.base import Array, Buffer
from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import KVCacheConfig
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.binding._faults import aliased, swap
from kvpipe.stages.binding._options import VerifyOptions
from kvpipe.stages.binding._pieces import Piece, content, pieces_of
from kvpipe.stages.binding._readings import Flat, Gathered, Reading
from kvpipe.stages.binding._scratched import ScratchProof, prove_scratch
from kvpipe.stages.binding._writings import write_states, write_tokens
from kvpipe.stages.binding.base import AttentionLayer, VerifyReport
from kvpipe.stages.binding.served_requests import ProofRequest, proof_requests

DIGEST_BUFFER_BYTES = 64 << 20  # up to here the digest is of the whole buffers


def prove(
    layers: Mapping[str, AttentionLayer],
    config: KVCacheConfig,
    buffers: KVBuffers,
    limits: RequestLimits,
    options: VerifyOptions,
) -> VerifyReport:
    """layers: every bound layer. Leaves the buffers as it found them."""
    requests = proof_requests(
        config, limits, options.num_requests, options.max_length, options.seed
    )
    with _one_thread():
        return _proof(layers, config, buffers, limits, requests, options)


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
    limits: RequestLimits,
    requests: Sequence[ProofRequest],
    options: VerifyOptions,
) -> VerifyReport:
    pieces = list(pieces_of(layers, config, requests, options.max_rows, options.seed))
    if not pieces:
        return VerifyReport(reason="nothing to store, or no request fits")
    targets = aliased(pieces) if options.inject == "alias" else {}
    lost = pieces[len(pieces) // 2] if options.inject == "lost" else None
    _write(pieces, targets, buffers, lost=lost)
    tables = [[dict(table) for table in request.tables] for request in requests]
    if options.inject == "swap":
        swap(tables, pieces)
    gathered, flat = _Count(Gathered(tables, buffers)), _Count(Flat(tables, buffers))
    for piece in pieces:
        expected = content(piece)
        gathered.compare(piece, expected)
        flat.compare(piece, expected)
    buffers.backend.check()
    misplaced = sum(not _in_place(layer, buffers) for layer in layers.values())
    whole = _digest(buffers)
    _write(pieces, targets, buffers, byte=buffers.init_byte)
    turns = ScratchProof()
    if any(config.scratch) and options.inject == "none":
        turns = prove_scratch(layers, config, buffers, limits, options.max_length, options.seed)
    tokens = {(p.request, row) for p in pieces if p.view.per_token for row in p.positions}
    states = {(p.group, p.request, i) for p in pieces if not p.view.per_token for i in p.positions}
    return VerifyReport(
        layers=len({piece.view.layer for piece in pieces}),
        tokens=len(tokens),
        state_pages=len(states),
        rows=flat.rows + turns.rows,
        gathered_rows=gathered.rows + turns.rows,
        mismatches=gathered.mismatches + flat.mismatches + misplaced + turns.mismatches,
        digest=whole or flat.digest.hexdigest(),
        digest_of="buffers" if whole else "rows",
        inject=options.inject,
    )


class _Count:
    """What one way of reading found: rows, those that are not what belongs there, a digest."""

    def __init__(self, read: Reading) -> None:
        self._read, self.digest = read, sha256()
        self.rows = self.mismatches = 0

    def compare(self, piece: Piece, expected: bytes) -> None:
        found, size = self._read(piece), piece.row_bytes
        self.digest.update(found)
        self.rows += len(expected) // size
        if found != expected:
            starts = range(0, len(expected), size)
            self.mismatches += sum(found[i : i + size] != expected[i : i + size] for i in starts)


def _digest(buffers: KVBuffers) -> str:
    """Of the whole buffers; "" where they are too large."""
    if sum(buffer.num_bytes for buffer in buffers.buffers) > DIGEST_BUFFER_BYTES:
        return ""
    digest = sha256()
    for buffer in buffers.buffers:
        digest.update(memoryview(buffer.data.cpu().numpy()))
    return digest.hexdigest()


# --- writing --------------------------------------------------------------------------------------
def _write(
    pieces: Sequence[Piece],
    targets: Mapping[tuple[str, str], ArrayView],
    buffers: KVBuffers,
    *,
    lost: Piece | None = None,
    byte: int | None = None,
) -> None:
    """All requests of one array at once. lost: the piece whose last row is not written. byte: that,
    instead of the rows."""
    for view, run in groupby(pieces, key=attrgetter("view")):
        batch = list(run)
        slots = [slot for piece in batch for slot in piece.slots]
        if lost in batch:
            slots[sum(len(p.slots) for p in batch[: batch.index(lost) + 1]) - 1] = -1
        new = _tensor(b"".join(content(p, byte) for p in batch), buffers.buffers[view.buffer])
        target = targets.get((view.layer, view.array), view)
        if view.per_token:  # a kernel's slots, where its blocks lie apart
            slots = batch[0].ids.slots(_integers(slots)).tolist()
        write = write_tokens if view.per_token else write_states
        write(target, new, slots, buffers)


def _integers(slots: Sequence[int]) -> Array:
    import numpy as np

    return np.array(slots, np.int64)


def _tensor(content: bytes, like: Buffer) -> Array:
    import torch

    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(like.data.device)


# --- what the model holds -------------------------------------------------------------------------
def _in_place(layer: AttentionLayer, buffers: KVBuffers) -> bool:
    """The tensors that the model was given begin where the layer's views do."""
    caches = layer.kv_cache if isinstance(layer.kv_cache, tuple) else (layer.kv_cache,)
    given = [cache.data_ptr() for cache in caches if cache is not None]
    starts = [buffers.buffers[v.buffer].data.data_ptr() + v.offset for v in layer.views]
    return bool(given) and given == starts[: len(given)]
