"""A cache of so many bytes, set by hand, beside what else stands on a card: whether it has both."""

from __future__ import annotations

from kvpipe.engines.planned import End
from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared, profile_ranks
from kvpipe.text.figures import size


def short_of_card(prepared: Prepared, end: End) -> int:
    """Bytes of a rank that are missing at that end of the memory; 0 where the card has them, where
    nothing was set by hand, and on a CPU, whose weights no run loads."""
    given, resolved = prepared.config.cache.kv_cache_memory_bytes, prepared.resolved
    if given is None or resolved.device.type == "cpu":
        return 0
    profile = profile_ranks(prepared)
    if end == "low":
        return profile.over_at_worst_bytes
    if end == "high":
        return max(rank.over_at_best_bytes for rank in profile.ranks)
    return max(rank.overcommitted_bytes for rank in profile.ranks)


def check_card(prepared: Prepared, end: End = "best") -> None:
    """DoesNotFit, unless the user said that more is meant."""
    missing, resolved = short_of_card(prepared, end), prepared.resolved
    if not missing or prepared.config.cache.may_exceed_device:
        return
    given = prepared.config.cache.kv_cache_memory_bytes or 0
    raise DoesNotFit(
        f"cache.kv_cache_memory_bytes: {size(given)} beside the weights "
        f"({size(resolved.weight_bytes_a_rank)}) and what a step takes are {size(missing)} more "
        f"than {resolved.device.name} has",
        available_bytes=(resolved.device.total_bytes,) * len(resolved.ranks),
    )


def is_beyond_card(prepared: Prepared) -> bool:
    """Whether a size set by hand is more than the card has by the best value, meant or not."""
    try:
        return short_of_card(prepared, "best") > 0
    except DoesNotFit:
        return prepared.config.cache.kv_cache_memory_bytes is not None
