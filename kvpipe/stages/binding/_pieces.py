"""What the self-proof writes: rows whose bytes name their layer, array, request, token and head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING

from kvpipe.cache.plan import KVCacheConfig
from kvpipe.layouts.base import ArrayView
from kvpipe.layouts.kernel_ids import KernelIds
from kvpipe.specs.base import DTYPE_BYTES
from kvpipe.stages.binding.base import AttentionLayer
from kvpipe.stages.binding.served_requests import ProofRequest, proof_positions

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

STATE_PIECE_BYTES = 4096  # of a large state only the first and the last bytes are written


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows of one request in one array of one layer.

    view: of the layer. positions: rows, each a token or several (for a state: block indices).
    slots: where the block manager wants them, in rows (for a state: block ids). block_size: rows in
    a block. ids: of the view's own blocks.
    """

    view: ArrayView
    group: int
    block_size: int
    ids: KernelIds
    request: int
    positions: tuple[int, ...]
    slots: tuple[int, ...]

    @cached_property
    def names(self) -> bytes:
        """16 bytes a row and head, which name its place."""
        place = f"{self.view.layer}/{self.view.array}/{self.request}"
        return b"".join(
            blake2b(f"{place}/{position}/{head}".encode(), digest_size=16).digest()
            for position in self.positions
            for head in range(self.num_heads)
        )

    @property
    def rows_key(self) -> tuple[int, int, int, KernelIds, tuple[int, ...]]:
        """Equal for pieces whose rows lie in the same slots."""
        return (self.group, self.request, self.block_size, self.ids, self.positions)

    @property
    def row_bytes(self) -> int:
        axes = self.view.shape[3:] if self.view.per_token else self.view.shape[1:]
        return prod(axes) * DTYPE_BYTES[self.view.dtype]

    @property
    def num_heads(self) -> int:
        return self.view.shape[2] if self.view.per_token else 1


def pieces_of(
    layers: Mapping[str, AttentionLayer],
    config: KVCacheConfig,
    requests: Sequence[ProofRequest],
    max_rows: int,
    seed: int,
) -> Iterator[Piece]:
    """Everything that is written, in the order of groups, layers, arrays and requests."""
    for index, group in enumerate(config.groups):
        ours = [name for name in group.layer_names if name in layers]
        block_size = group.block_spec.block_size
        heads = [view.shape[2] for name in ours for view in layers[name].views if view.per_token]
        max_tokens = max(1, max_rows // (max(heads, default=1) * max(len(requests), 1)))
        tokens = [proof_positions(r, index, block_size, max_tokens, seed) for r in requests]
        for part in (part for name in ours for part in parts_of(layers[name].views)):
            ids = part.kernel_ids(config.num_blocks * group.blocks_per_slot)
            rows = ids.held * ids.rows if part.per_token else 1
            for number, request in enumerate(requests):
                slots = request.tables[index]
                if part.per_token:
                    slots = _row_slots(request.slots[index], tokens[number], block_size // rows)
                if slots:
                    yield Piece(
                        view=part,
                        group=index,
                        block_size=rows,
                        ids=ids,
                        request=number,
                        positions=tuple(slots),
                        slots=tuple(slots.values()),
                    )


def _row_slots(
    slots: Mapping[int, int], positions: Sequence[int], tokens_per_row: int
) -> dict[int, int]:
    """Row -> slot, counted in rows, of the rows that hold the tokens at `positions`."""
    return {p // tokens_per_row: slots[p] // tokens_per_row for p in positions}


def parts_of(views: Sequence[ArrayView]) -> list[ArrayView]:
    """Token arrays as they are; of states, as bytes, the parts that are written."""
    return [part for view in views for part in ([view] if view.per_token else _ends(view))]


def _ends(view: ArrayView) -> list[ArrayView]:
    """A state array as bytes: whole, or its first and last piece where it is large."""
    size = prod(view.shape[1:]) * DTYPE_BYTES[view.dtype]
    length = size if size <= 2 * STATE_PIECE_BYTES else STATE_PIECE_BYTES
    starts = [0] if length == size else [0, size - length]
    return [
        replace(
            view,
            array=f"{view.array}@{start}",
            dtype="uint8",
            offset=view.offset + start,
            shape=(view.shape[0], length),
            strides=(view.strides[0], 1),
        )
        for start in starts
    ]


def content(piece: Piece, byte: int | None = None) -> bytes:
    """The bytes of a piece, row after row, head after head: the names, each repeated to the length
    of a row; or as many of one byte."""
    import numpy as np

    size = piece.row_bytes
    names = np.frombuffer(piece.names, np.uint8).reshape(-1, 16)
    if byte is not None:
        return bytes([byte]) * (size * len(names))
    return repeated(names, size).tobytes()


def repeated(names: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """[n, 16] uint8 -> [n, size]: each name again and again."""
    import numpy as np

    return np.tile(names, (1, -(-size // 16)))[:, :size]
