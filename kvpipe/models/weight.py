"""A tensor of a model's weights: its name, its shape, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, kw_only=True)
class Weight:
    """`count` equal tensors of `shape` (experts).

    layer: index, or None outside the layers, where `last` tells the end of the model (final norm,
    head) from its start (embeddings; a `tied` one is the head, too, so both ends hold it). split:
    the axis that tensor parallelism divides (None: every rank holds all of it), in at most `parts`
    pieces (K/V heads). linear: a matrix that quantisers convert.
    """

    name: str
    shape: tuple[int, ...]
    count: int = 1
    layer: int | None = None
    last: bool = False
    tied: bool = False
    split: int | None = None
    parts: int | None = None
    linear: bool = False

    @property
    def num_parameters(self) -> int:
        return self.count * prod(self.shape)
