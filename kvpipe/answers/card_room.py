"""A cache of so many bytes, set by hand, beside the weights: whether the card has both."""

from __future__ import annotations

from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared
from kvpipe.text.figures import size


def short_of_card(prepared: Prepared) -> int:
    """Bytes of a rank that are missing; 0 where the card has them, where nothing was set by hand,
    and on a CPU, whose weights no run loads."""
    given, resolved = prepared.config.cache.kv_cache_memory_bytes, prepared.resolved
    if given is None or resolved.device.type == "cpu":
        return 0
    return max(0, resolved.weight_bytes_a_rank + given - resolved.device.total_bytes)


def check_card(prepared: Prepared) -> None:
    """DoesNotFit, unless the user said that more is meant."""
    missing, resolved = short_of_card(prepared), prepared.resolved
    if not missing or prepared.config.cache.may_exceed_device:
        return
    given = prepared.config.cache.kv_cache_memory_bytes or 0
    raise DoesNotFit(
        f"cache.kv_cache_memory_bytes: {size(given)} beside "
        f"{size(resolved.weight_bytes_a_rank)} of weights are {size(missing)} more than "
        f"{resolved.device.name} has",
        available_bytes=(resolved.device.total_bytes,) * len(resolved.ranks),
    )
