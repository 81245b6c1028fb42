"""Tensor-parallel sizes that the attention heads and every layer allow together.

Each refuses by itself, but a size that one of them allows may be refused by another: what is named
was tried on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvpipe.errors import Problem, SpecError
from kvpipe.specs.base import KVCacheSpec

_PP = "parallel.pipeline_parallel_size"
KEY = "parallel.tensor_parallel_size"
MOST_RANKS, LISTED = 128, 8


def split_problem(
    specs: Iterable[KVCacheSpec], num_heads: int, tp: int, num_layers: int = 0
) -> Problem | None:
    """What stands in the way of `tp` ranks, with the sizes that nothing stands in the way of; None
    where nothing does. specs: of the whole model. num_heads: of its queries (0: not known).
    num_layers: that a pipeline may split instead (0: none)."""
    distinct = list(dict.fromkeys(specs))
    reasons = list(dict.fromkeys(_reasons(distinct, num_heads, tp)))
    if not reasons:
        return None
    legal = [n for n in range(1, MOST_RANKS + 1) if not any(_reasons(distinct, num_heads, n))]
    named = ", ".join(map(str, legal[:LISTED])) + (", ..." if len(legal) > LISTED else "")
    stages = f"a pipeline splits layers instead: {_PP}={tp} with {KEY}=1"
    knob = stages if 1 < tp <= num_layers else ""
    return Problem(KEY, f"one of {named} ({'; '.join(reasons)})", str(tp), knob)


def _reasons(specs: Sequence[KVCacheSpec], num_heads: int, tp: int) -> Iterator[str]:
    if num_heads % tp:
        yield f"{num_heads} attention heads are split"
    for spec in specs:
        try:
            spec.shard(tp)
        except SpecError as error:
            yield error.why or str(error)
