"""The contract of profiling: device, model, batch budget -> MemoryProfile, in bytes a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kvpipe.backends.base import MemoryInfo
from kvpipe.errors import CardDemand
from kvpipe.models.base import ModelGeometry
from kvpipe.notes import Note
from kvpipe.stages.validation.base import ResolvedDevice, ResolvedParallel

if TYPE_CHECKING:  # needed for logs alone
    from kvpipe.logs.engine_log import EngineLog


class AsksMemory(Protocol):
    """What profiling needs of a backend."""

    def memory_info(self) -> MemoryInfo: ...


@dataclass(frozen=True)
class AskedWhenNeeded:
    """A backend that is made when a plugin asks it: most plans rest on figures of their own, and
    need neither the backend's library nor its kernels."""

    make: Callable[[], AsksMemory]

    def memory_info(self) -> MemoryInfo:
        return self.make().memory_info()


@runtime_checkable
class Profiling(Protocol):
    """A stage plugin also has `Options` and takes them in its constructor. One that knows what
    stands on the device beside a cache set by hand has `beside_set_by_hand(profile, request)`,
    which gives the profile back with it."""

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        """ConfigError where the request gives too little to say anything."""
        ...


@dataclass(frozen=True, kw_only=True)
class ProfilingRequest:
    """What the plugins may ask about. kv_cache_memory_bytes is for `every_rank` alone: when it is
    set, no plugin is asked.

    stage_layers: model layers of each pipeline stage. engine_version: the release that is planned
    for ("": none in particular). ranks: those that are on this device (None: all).
    """

    model: ModelGeometry
    served_dtype: str
    device: ResolvedDevice
    parallel: ResolvedParallel
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    stage_layers: tuple[int, ...] = ()
    engine_version: str = ""
    ranks: tuple[int, ...] | None = None

    @property
    def shares_experts(self) -> bool:
        """Whether experts are divided otherwise than the rest of the weights."""
        parallel = self.parallel
        return bool(self.model.experts_per_token) and (parallel.dp > 1 or parallel.expert_parallel)


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """One sum of bytes. how: measured | exact | estimated | nominal | set. source: in words.

    low_bytes, high_bytes: the range that num_bytes is the best value of, where it is not exact.
    Sums are made of best values alone; ranges stand beside them.
    """

    name: str
    num_bytes: int
    how: str
    source: str
    low_bytes: int | None = None
    high_bytes: int | None = None

    @property
    def at_least(self) -> int:
        return self.num_bytes if self.low_bytes is None else self.low_bytes

    @property
    def at_most(self) -> int:
        return self.num_bytes if self.high_bytes is None else self.high_bytes


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """total >= requested = what the run may use; available_kv_bytes = requested - charged items,
    unless kv_cache_memory_bytes set it. unrequested bytes of the device stay untouched."""

    rank: int
    total: MemoryItem
    requested: MemoryItem
    charged: tuple[MemoryItem, ...]  # weights, activations, other
    available_kv: MemoryItem

    @property
    def available_kv_bytes(self) -> int:
        return self.available_kv.num_bytes

    @property
    def is_set_by_hand(self) -> bool:
        """The cache has that size whatever else the device must hold."""
        return self.available_kv.how == "set"

    @property
    def over_at_worst_bytes(self) -> int:
        """Beyond the device, where all beside a cache set by hand is as large as it may be."""
        if not self.is_set_by_hand:
            return 0
        most = self.available_kv_bytes + sum(item.at_most for item in self.charged)
        return max(0, most - self.total.num_bytes)

    @property
    def over_at_best_bytes(self) -> int:
        """Beyond the device, where all beside a cache set by hand is as small as it may be."""
        if not self.is_set_by_hand:
            return self.overcommitted_bytes
        least = self.available_kv_bytes + sum(item.at_least for item in self.charged)
        return max(0, least - self.total.num_bytes)

    def lacking_at_worst_bytes(self, needed_bytes: int) -> int:
        """Of what is needed, at the low end of the cache's range."""
        low = self.available_kv.low_bytes
        return 0 if low is None else max(0, needed_bytes - low)

    @property
    def overcommitted_bytes(self) -> int:
        """Beyond the device: a cache set by hand is given that size whatever stands beside it."""
        return max(0, self.requested.num_bytes - self.total.num_bytes)


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """plugin: the profiling plugin that answered (`auto` names the one it chose). log: the engine's
    log that the figures were read from, which also says what capacity it printed. notes: what the
    plugin has to say about its figures."""

    plugin: str
    ranks: tuple[RankMemory, ...]
    log: EngineLog | None = None
    notes: tuple[Note, ...] = ()

    @property
    def available_kv_bytes(self) -> tuple[int, ...]:
        return tuple(rank.available_kv_bytes for rank in self.ranks)

    @property
    def most_kv_bytes(self) -> tuple[int, ...]:
        """At the high end of an estimate; () where the memory is none."""
        if all(rank.available_kv.high_bytes is None for rank in self.ranks):
            return ()
        return tuple(rank.available_kv.at_most for rank in self.ranks)

    @property
    def over_at_worst_bytes(self) -> int:
        """On the rank that is most beyond its device."""
        return max(rank.over_at_worst_bytes for rank in self.ranks)

    def lacking_at_worst_bytes(self, needed_bytes: Sequence[int]) -> int:
        """On the rank that lacks most; needed_bytes: of a load, rank by rank."""
        pairs = zip(self.ranks, needed_bytes, strict=True)
        return max(rank.lacking_at_worst_bytes(needed) for rank, needed in pairs)


def device_total(device: ResolvedDevice) -> MemoryItem:
    # A named device elsewhere: what its driver printed there (see conf/device), or what is sold.
    printed = "memory: " in device.source and "memory: nominal" not in device.source
    how = "measured" if device.is_here or printed else "nominal"
    return MemoryItem(name="total", num_bytes=device.total_bytes, how=how, source=device.source)


def demanded(
    requested: MemoryItem,
    charged: Sequence[MemoryItem],
    total: MemoryItem,
    *,
    rank: int = 0,
    cache_bytes: int = 0,
) -> CardDemand:
    """What a card is asked to hold: what is charged, and a cache of so many bytes."""
    parts = [(item.name, item.num_bytes) for item in charged if item.num_bytes > 0]
    return CardDemand(
        rank=rank,
        total_bytes=total.num_bytes,
        allowed_bytes=min(requested.num_bytes, total.num_bytes),
        parts=(*parts, ("KV cache", cache_bytes)),
    )


def same_on_every_rank(plugin: str, request: ProfilingRequest, memory: RankMemory) -> MemoryProfile:
    """One account for every rank, where nothing distinguishes them."""
    here = request.ranks or range(request.parallel.tp * request.parallel.pp)
    return MemoryProfile(plugin=plugin, ranks=tuple(replace(memory, rank=rank) for rank in here))
