"""The memory that a cache has, in words: its best value, and its range where it is an estimate."""

from __future__ import annotations

from kvpipe.stages.profiling.base import MemoryItem, MemoryProfile
from kvpipe.text.figures import ends_of, size


def poorest(profile: MemoryProfile) -> MemoryItem:
    """What the rank with the least memory has for its cache."""
    return min((rank.available_kv for rank in profile.ranks), key=lambda item: item.num_bytes)


def range_words(cache: MemoryItem) -> str:
    """`1.10 to 3.90`; "" where nothing of it is estimated."""
    if cache.low_bytes is None or cache.high_bytes is None:
        return ""
    return ends_of(cache.num_bytes, cache.low_bytes, cache.high_bytes)


def cache_words(cache: MemoryItem) -> str:
    """`2.70 GiB of cache (1.10 to 3.90)`."""
    ends = range_words(cache)
    return f"{size(cache.num_bytes)} of cache" + (f" ({ends})" if ends else "")
