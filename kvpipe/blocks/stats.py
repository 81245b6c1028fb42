"""How many blocks of a pool are in which state, and what became of them so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """Counts of blocks. usable excludes the null block; usable = in_use + cached_free + empty_free.
    allocated, freed, shared, evicted: totals since the pool was made."""

    usable: int
    in_use: int
    cached_free: int
    empty_free: int
    keyed: int
    peak_in_use: int
    allocated: int
    freed: int
    shared: int
    evicted: int
