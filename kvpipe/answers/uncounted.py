"""On a CPU only the cache is planned; what the weights would take beside it is said, not hidden."""

from __future__ import annotations

from kvpipe.stages.profiling.base import MemoryProfile
from kvpipe.stages.validation.base import ResolvedRun
from kvpipe.text.figures import size


def weights_left_out(resolved: ResolvedRun, profile: MemoryProfile) -> int:
    """Bytes of weights on each rank, where the profile has no item for them."""
    if profile.ranks[0].charged or resolved.device.type != "cpu":
        return 0
    return resolved.weight_bytes_a_rank


def uncounted_words(resolved: ResolvedRun, profile: MemoryProfile) -> str:
    """`; 14.96 GiB of weights are not counted`, or nothing."""
    left = weights_left_out(resolved, profile)
    return f"; {size(left)} of weights are not counted" if left else ""


def status_beside_weights(resolved: ResolvedRun, profile: MemoryProfile) -> str:
    """Of a cache that fits: "may_not_fit" where the weights that nobody counted are more than the
    device has."""
    left = weights_left_out(resolved, profile)
    return "may_not_fit" if left > profile.ranks[0].total.num_bytes else "fits"
