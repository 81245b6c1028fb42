"""The contract of profiling: device and weights -> MemoryProfile, bytes a rank, each with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """One sum of bytes. how: measured | exact | estimated | nominal | set. source: in words."""

    name: str
    num_bytes: int
    how: str
    source: str


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


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """plugin: the profiling plugin that answered (`auto` names the one it chose)."""

    plugin: str
    ranks: tuple[RankMemory, ...]

    @property
    def available_kv_bytes(self) -> tuple[int, ...]:
        return tuple(rank.available_kv_bytes for rank in self.ranks)
