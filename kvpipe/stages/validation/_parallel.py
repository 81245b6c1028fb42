"""parallel.* as the other stages take it."""

from __future__ import annotations

from kvpipe.errors import ConfigError, Problem
from kvpipe.request.config import ParallelConfig
from kvpipe.stages.validation.base import ResolvedParallel


def resolved_parallel(parallel: ParallelConfig) -> ResolvedParallel:
    return ResolvedParallel(
        tp=parallel.tensor_parallel_size,
        pp=parallel.pipeline_parallel_size,
        dcp=parallel.decode_context_parallel_size,
        dp=parallel.data_parallel_size,
        expert_parallel=parallel.enable_expert_parallel,
    )


def check_parallel(parallel: ParallelConfig) -> None:
    """ConfigError where sizes of ranks contradict each other."""
    tp, dcp = parallel.tensor_parallel_size, parallel.decode_context_parallel_size
    if tp % dcp:
        raise ConfigError(
            Problem(
                "parallel.decode_context_parallel_size",
                f"a divisor of tensor_parallel_size {tp}, whose ranks it shares",
                str(dcp),
            )
        )
    sizes, ranks = parallel.rank_memory_bytes, tp * parallel.pipeline_parallel_size
    if sizes is not None and len(sizes) != ranks:
        raise ConfigError(
            Problem(
                "parallel.rank_memory_bytes",
                f"one size for each of {ranks} ranks",
                f"{len(sizes)} sizes",
            )
        )
