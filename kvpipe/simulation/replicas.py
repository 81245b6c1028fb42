"""Several replicas that serve one trace, each with a pool of its own.

Every replica is replayed by itself, which is exact: they share nothing but the router. What is
told of them together: counts and waits of all requests; steps, blocks and the picture of the
busiest, the replica whose pool was fullest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from kvpipe.simulation.counts import Counts
from kvpipe.simulation.hits import summed
from kvpipe.simulation.latencies import Latencies
from kvpipe.simulation.result import ReplayResult, ReplicaShare
from kvpipe.simulation.traces.base import TraceRequest

Play = Callable[[Sequence[TraceRequest]], ReplayResult]


def played(parts: Sequence[Sequence[TraceRequest]], play: Play) -> ReplayResult:
    """parts: the requests of each replica; those that are sent nothing are left out."""
    return told_together([play(part) for part in parts if part])


def told_together(results: Sequence[ReplayResult]) -> ReplayResult:
    """Of replicas, or of a replica's data-parallel copies: each copy has its share in the end."""
    busiest = max(results, key=lambda each: (each.peak_in_use, each.busy_s))
    return replace(
        busiest,
        requests=sum(each.requests for each in results),
        counts=_summed([each.counts for each in results]),
        simulated_s=max(each.simulated_s for each in results),
        latencies=_together([each.latencies for each in results]),
        arrivals_s=max(each.arrivals_s for each in results),
        replicas=tuple(share for each in results for share in _shares(each)),
        busiest=sum(len(_shares(each)) for each in results[: results.index(busiest)])
        + busiest.busiest,
        prefix_groups=summed([each.prefix_groups for each in results]),
    )


def _shares(result: ReplayResult) -> tuple[ReplicaShare, ...]:
    return result.replicas or (_share(result),)


def _share(result: ReplayResult) -> ReplicaShare:
    return ReplicaShare(
        requests=result.requests,
        busy_s=result.busy_s,
        max_running=result.max_running,
        peak_in_use=result.peak_in_use,
        preemptions=result.counts.preemptions,
        hit_rate=result.hit_rate,
    )


def _together(times: Sequence[Latencies]) -> Latencies:
    found = Latencies(longest_service=max(each.longest_service for each in times))
    for each in times:
        found.wait.extend(each.wait)
        found.first_token.extend(each.first_token)
        found.each_token.extend(each.each_token)
    return found


def _summed(counts: Sequence[Counts]) -> Counts:
    names = [field.name for field in fields(Counts)]
    return Counts(**{name: sum(getattr(each, name) for each in counts) for name in names})
