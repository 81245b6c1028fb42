"""A plugin's answer for every rank: a size set by hand wins over all plugins; a rank whose device
has a size of its own is profiled there, and on no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvpipe.errors import CardDemand, DoesNotFit
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryProfile,
    ProfilingRequest,
    same_on_every_rank,
)
from kvpipe.text.figures import size as bytes_of

SET_BY_HAND = "fixed"


def profile_every_rank(
    plugin: Any,
    request: ProfilingRequest,
    backend: AsksMemory,
    *,
    sizes: Sequence[int] | None = None,
    may_exceed_device: bool = False,
) -> MemoryProfile:
    """sizes: bytes of each rank's device (None: the device's, on all). DoesNotFit where a rank has
    no room, or the size set by hand is more than its device has (unless that is meant)."""
    if sizes is None:
        return _profile(plugin, request, backend, may_exceed_device)
    profiles = {}
    for size in dict.fromkeys(sizes):
        ranks = tuple(rank for rank, mine in enumerate(sizes) if mine == size)
        there = replace(_on_device_of(request, size), ranks=ranks)
        profiles[size] = _profile(plugin, there, backend, may_exceed_device)
    by_rank = [
        next(each for each in profiles[size].ranks if each.rank == rank)
        for rank, size in enumerate(sizes)
    ]
    return replace(profiles[sizes[0]], ranks=tuple(by_rank))


def _profile(
    plugin: Any, request: ProfilingRequest, backend: AsksMemory, may_exceed_device: bool
) -> MemoryProfile:
    asked = request.kv_cache_memory_bytes
    if asked is None:
        profile: MemoryProfile = plugin.run(request, backend)
        return profile
    is_accelerator = request.device.type != "cpu"  # on a CPU, allocation itself refuses
    if is_accelerator and asked > request.device.total_bytes and not may_exceed_device:
        raise _too_large(asked, request)
    from kvpipe.stages.profiling.fixed import by_hand

    profile = same_on_every_rank(SET_BY_HAND, request, by_hand(request))
    beside = getattr(plugin, "beside_set_by_hand", None)
    return beside(profile, request) if beside else profile


def _too_large(asked: int, request: ProfilingRequest) -> DoesNotFit:
    device = request.device
    return DoesNotFit(
        f"cache.kv_cache_memory_bytes: {bytes_of(asked)} a rank, more than all of device "
        f"{device.name} ({bytes_of(device.total_bytes)}). If that is meant: "
        "cache.may_exceed_device=true",
        needed_bytes=(asked,),
        available_bytes=(device.total_bytes,),
        demand=CardDemand(
            rank=0,
            total_bytes=device.total_bytes,
            allowed_bytes=device.total_bytes,
            parts=(("KV cache", asked),),
        ),
    )


def _on_device_of(request: ProfilingRequest, total_bytes: int) -> ProfilingRequest:
    source = "parallel.rank_memory_bytes"
    return replace(request, device=replace(request.device, total_bytes=total_bytes, source=source))
