"""Which models whole experts can be given to ranks of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import ModelGeometry
from kvpipe.models.weight import Weight
from kvpipe.request.config import RunConfig


def check_experts(config: RunConfig, model: ModelGeometry) -> None:
    """ConfigError where a model has no experts, or what each rank would hold of them is not
    known."""
    parallel = config.parallel
    if not parallel.enable_expert_parallel:
        return
    if not model.experts_per_token:
        problem = Problem(
            "parallel.enable_expert_parallel",
            "false: a model without experts has none to give to ranks",
            f"true for {model.name}",
        )
        raise ConfigError(problem)
    ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
    if ranks == 1:
        return
    if model.rank_parameters is None and model.weights is None:
        problem = Problem(
            "parallel.enable_expert_parallel",
            "false: how many of its weights are experts is not known",
            f"true for {model.name}",
        )
        raise ConfigError(problem)
    number = _experts(model.weights) if model.weights is not None else ranks
    if number < ranks:
        problem = Problem(
            "parallel.enable_expert_parallel",
            f"at most a rank an expert, {number} of {model.name}",
            f"{parallel.tensor_parallel_size} x {parallel.data_parallel_size} ranks",
        )
        raise ConfigError(problem)


@lru_cache(maxsize=8)
def _experts(weights_of: Callable[[], Sequence[Weight]]) -> int:
    """Routed experts of the layer with the fewest; 2**31 where no tensor tells."""
    return min((weight.count for weight in weights_of() if weight.is_routed), default=2**31)
