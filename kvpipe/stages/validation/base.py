"""The contract of validation: RunConfig -> ResolvedRun, in which nothing is left "auto".

The one exception is `scheduler.max_model_len=auto`: the limits carry the model's own context and
`fit` says that grouping may lower it. Every problem of a request is found here, before a folder is
made or a byte is owned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvpipe.models.base import ModelGeometry
from kvpipe.models.weight import Ranks
from kvpipe.notes import Note
from kvpipe.request.config import RunConfig
from kvpipe.specs.base import CacheLayer, RequestLimits, cdiv


@runtime_checkable
class Validation(Protocol):
    """A stage plugin also has `Options` and takes them in its constructor."""

    def run(self, config: RunConfig) -> ResolvedRun:
        """ConfigError with every problem of the request."""
        ...


@dataclass(frozen=True, kw_only=True)
class ResolvedDevice:
    """The device planned for. total_bytes and free_bytes of one device, and where they come from.

    is_here: the device is in this machine, so memory can be allocated on it. compute_capability:
    (major, minor) of a CUDA device, None elsewhere.
    """

    name: str
    type: str  # cpu | cuda | rocm
    is_here: bool
    total_bytes: int
    free_bytes: int | None
    source: str
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RankLayers:
    """The caches one rank stores, already sharded. rank = pp_rank * tp + tp_rank."""

    rank: int
    tp_rank: int
    pp_rank: int
    layers: tuple[CacheLayer, ...]


@dataclass(frozen=True, kw_only=True)
class ResolvedParallel:
    tp: int
    pp: int
    dcp: int
    dp: int = 1
    expert_parallel: bool = False

    @property
    def sharing(self) -> Ranks:
        """Who share the weights of a stage."""
        return Ranks(tp=self.tp, dp=self.dp, expert_parallel=self.expert_parallel)


@dataclass(frozen=True, kw_only=True)
class ResolvedRun:
    """What every later stage is given a part of. backend_reason: why `auto` chose it.
    block_quantum: tokens that a block is a multiple of, where the layers' own blocks were grown to
    hold a state (None: they were not, or pages are padded by hand)."""

    model: ModelGeometry
    served_dtype: str
    cache_dtype: str
    device: ResolvedDevice
    backend: str
    backend_reason: str
    parallel: ResolvedParallel
    ranks: tuple[RankLayers, ...]
    limits: RequestLimits
    fit: bool
    max_num_seqs: int
    gpu_memory_utilization: float
    notes: tuple[Note, ...] = ()
    block_quantum: int | None = None

    @property
    def weight_bytes_a_rank(self) -> int:
        """Of the weights in the served dtype, evenly over the ranks; 0 where unknown."""
        whole = self.model.bytes_of_weights(self.served_dtype)
        return cdiv(whole, self.parallel.tp * self.parallel.pp)
