"""Counting parameters: of the model, and of one rank under tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.models.families.base import Weight


def count_parameters(weights: Iterable[Weight]) -> int:
    return sum(weight.num_parameters for weight in weights)


def widest(weights: Iterable[Weight]) -> int:
    """The intermediate size where the file has none: the widest up-projection, or channels of a
    state."""
    ups = (".up_proj.weight", ".fc1.weight", ".wi_0.weight", "intermediate.dense.weight")
    sizes = (
        weight.shape[0] if weight.name.endswith(ups) else weight.shape[1]
        for weight in weights
        if weight.name.endswith((*ups, ".out_proj.weight"))
    )
    return max(sizes, default=0)


def rank_parameters(
    weights: Iterable[Weight], *, tp: int, stage_layers: range, first: bool, last: bool
) -> int:
    """Parameters that one rank of a pipeline stage holds.

    stage_layers: layers of the stage; first and last tell whether it has the embeddings and the
    head. A split weight is divided over tp ranks, up to its number of parts (K/V heads), beyond
    which ranks hold copies; the others are held whole by every rank.
    """
    return sum(
        weight.num_parameters // _pieces(weight, tp)
        for weight in weights
        if _is_here(weight, stage_layers, first=first, last=last)
    )


def _is_here(weight: Weight, stage_layers: range, *, first: bool, last: bool) -> bool:
    if weight.layer is not None:
        return weight.layer in stage_layers
    if weight.last:
        return last
    return first or (last and weight.tied)


def _pieces(weight: Weight, tp: int) -> int:
    """How many different pieces tp ranks hold of a weight; 1: all hold the same."""
    if weight.split is None:
        return 1
    parts = weight.parts or weight.shape[weight.split]
    if parts % tp == 0:
        return tp
    return parts if tp % parts == 0 else 1
