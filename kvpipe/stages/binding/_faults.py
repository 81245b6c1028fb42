"""Faults that the self-proof must find: two layers on the same pages, two block ids exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.base import ArrayView
from kvpipe.stages.binding._pieces import Piece


def aliased(pieces: Sequence[Piece]) -> dict[tuple[str, str], ArrayView]:
    """The second of two layers with equal arrays writes to the first one's pages. Not two that lie
    on the same bytes, as layers of two groups may: that would be no fault. ConfigError where no two
    are alike."""
    layers: dict[str, dict[str, ArrayView]] = {}
    for piece in pieces:
        layers.setdefault(piece.view.layer, {})[piece.view.array] = piece.view
    seen: dict[Any, dict[str, ArrayView]] = {}
    for name, mine in layers.items():
        alike = tuple((part.array, part.dtype, part.shape) for part in mine.values())
        first = seen.setdefault(alike, mine)
        if _places(first) != _places(mine):
            return {(name, array): part for array, part in first.items()}
    raise ConfigError(
        Problem(
            "binding.verify.inject",
            "a model in which two layers have equal arrays, for alias",
            f"{len(layers)} layers that all differ",
            "swap or lost",
        )
    )


def _places(arrays: Mapping[str, ArrayView]) -> list[tuple[object, ...]]:
    return [(part.buffer, part.offset, part.strides) for part in arrays.values()]


def swap(tables: Sequence[Sequence[dict[int, int]]], pieces: Sequence[Piece]) -> None:
    """Exchanges two block ids in what the reader is given: of one group where one has two, else of
    any two tables; a lone block becomes the null block."""
    by_group: dict[int, set[tuple[int, int, int]]] = {}
    for piece in pieces:
        size = piece.block_size if piece.view.per_token else 1
        held = by_group.setdefault(piece.group, set())
        held |= {(piece.request, piece.group, position // size) for position in piece.positions}
    everything = {place for held in by_group.values() for place in held}
    chosen = next((held for held in by_group.values() if len(held) > 1), everything)
    if len(chosen) < 2:
        ((request, group, index),) = chosen
        tables[request][group][index] = 0
        return
    (r1, g1, i1), (r2, g2, i2) = Random(0).sample(sorted(chosen), 2)
    one, two = tables[r1][g1], tables[r2][g2]
    one[i1], two[i2] = two[i2], one[i1]
