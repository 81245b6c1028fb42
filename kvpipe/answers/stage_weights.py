"""Bytes of the weights on a rank of each pipeline stage, as profiling=estimate counts them."""

from __future__ import annotations

from dataclasses import replace

from kvpipe.pipeline import Prepared, profiling_request
from kvpipe.request.confdir import shipped_option
from kvpipe.stages.profiling.base import MemoryItem
from kvpipe.stages.profiling.estimate import EstimateProfiling


def stage_weights(prepared: Prepared, *, shared: bool = True) -> dict[int, MemoryItem]:
    """Stage -> weights; with the options of profiling=estimate where that is what was chosen.
    shared False: as if no other copy shared this one's experts. ConfigError where the model does
    not say how many parameters it has."""
    request, options = profiling_request(prepared), prepared.config.plugins["profiling"].options
    if not shared:
        alone = replace(request.parallel, dp=1, expert_parallel=False)
        request = replace(request, parallel=alone)
    if not isinstance(options, EstimateProfiling.Options):
        options = EstimateProfiling.Options(**shipped_option("profiling", "estimate"))
    estimate = EstimateProfiling(options)
    return {stage: estimate.weights(stage, request) for stage in range(request.parallel.pp)}
