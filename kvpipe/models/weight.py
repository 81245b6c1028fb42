"""A tensor of a model's weights: its name, its shape, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Who share a stage's weights: tp ranks everything that can be split; dp such sets, each with
    requests of its own, the routed experts alone. expert_parallel: each has whole experts of them,
    not a slice of every one."""

    tp: int = 1
    dp: int = 1
    expert_parallel: bool = False


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
    def is_routed(self) -> bool:
        """Of experts of which each token visits a few."""
        return ".experts." in self.name

    @property
    def is_shared_expert(self) -> bool:
        """Of one that every token visits."""
        return ".shared_expert" in self.name

    @property
    def num_parameters(self) -> int:
        return self.count * prod(self.shape)
