"""Counting parameters: of the model, and of one rank under tensor and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from kvpipe.models.base import ModelGeometry, RankParameters
from kvpipe.models.families.base import Weight
from kvpipe.models.weight import Ranks


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


def parameters_by_rank(model: ModelGeometry) -> RankParameters | None:
    """What ranks hold of a model whose matrices are known one by one; None of any other."""
    if model.rank_parameters is not None or model.weights is None:
        return model.rank_parameters
    return _counter(model.weights)


@lru_cache(maxsize=8)
def _counter(weights_of: Callable[[], Sequence[Weight]]) -> RankParameters:
    """Each count is made once: a search asks for the same ones for every setting beside."""
    weights = weights_of()

    @lru_cache(maxsize=256)
    def counted(ranks: Ranks, stage: range, first: bool, last: bool) -> int:
        return rank_parameters(weights, ranks=ranks, stage_layers=stage, first=first, last=last)

    return counted


def rank_parameters(
    weights: Iterable[Weight], *, ranks: Ranks, stage_layers: range, first: bool, last: bool
) -> int:
    """Parameters that one rank of a pipeline stage holds.

    stage_layers: layers of the stage; first and last tell whether it has the embeddings and the
    head. A split weight is divided over tp ranks, up to its number of parts (K/V heads), beyond
    which ranks hold copies; the others are held whole by every rank. Routed experts are divided
    over tp x dp ranks, as vLLM does: each expert, or whole ones (the first ranks have one more).
    """
    return sum(
        _held(weight, ranks)
        for weight in weights
        if _is_here(weight, stage_layers, first=first, last=last)
    )


def _held(weight: Weight, ranks: Ranks) -> int:
    everyone = ranks.tp * ranks.dp
    if weight.is_routed and ranks.expert_parallel:
        return -(-weight.count // everyone) * (weight.num_parameters // weight.count)
    if weight.is_routed:
        return weight.num_parameters // _pieces(weight, everyone)
    if weight.is_shared_expert and ranks.expert_parallel and min(ranks.tp, ranks.dp) > 1:
        return weight.num_parameters  # tokens are split over the ranks there, not the weight
    return weight.num_parameters // _pieces(weight, ranks.tp)


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
