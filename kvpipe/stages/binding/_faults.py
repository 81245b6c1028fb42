"""Faults that the self-proof must find: two layers on the same pages, two block ids exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from kvpipe.layouts.base import ArrayView
from kvpipe.stages.binding._pieces import Piece, parts_of
from kvpipe.stages.binding.base import AttentionLayer


def aliased(layers: Mapping[str, AttentionLayer]) -> dict[tuple[str, str], ArrayView]:
    """The second of two layers with equal arrays writes to the first one's pages."""
    parts: dict[Any, dict[str, ArrayView]] = {}
    for name, layer in layers.items():
        mine = {part.array: part for part in parts_of(layer.views)}
        shape = tuple((part.array, part.dtype, part.shape) for part in mine.values())
        if shape in parts:
            return {(name, array): part for array, part in parts[shape].items()}
        parts[shape] = mine
    return {}


def swap(tables: list[list[dict[int, int]]], pieces: Sequence[Piece]) -> None:
    """Exchanges two block ids that were written, of one group, in what the reader is given."""
    places: dict[int, set[tuple[int, int]]] = {}
    for piece in pieces:
        size = piece.block_size if piece.view.per_token else 1
        held = places.setdefault(piece.group, set())
        held |= {(piece.request, position // size) for position in piece.positions}
    for group, held in places.items():
        if len(held) > 1:
            (r1, i1), (r2, i2) = Random(0).sample(sorted(held), 2)
            one, two = tables[r1][group], tables[r2][group]
            one[i1], two[i2] = two[i2], one[i1]
            return
