"""What a replay found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from kvpipe.blocks import PoolStats
from kvpipe.simulation.counts import Counts, RanDry
from kvpipe.simulation.hits import GroupHits
from kvpipe.simulation.latencies import Latencies, Percentiles, overload, percentiles
from kvpipe.simulation.ledger import Gap, Point

# Long, and in no document.
_OF_PICTURES = frozenset({"points", "idle", "preempted_s", "latencies"})


@dataclass(frozen=True, kw_only=True)
class ReplicaShare:
    """What one of several replicas did. busy_s: simulated seconds in which it had work. hit_rate:
    share of its prompt tokens that were cached."""

    requests: int
    busy_s: float
    max_running: int
    peak_in_use: int
    preemptions: int
    hit_rate: float


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """requests: of the trace; counts say what became of them. mean_running: over the time in which
    the engine was busy. pool: block counts at the end, with totals. requests_steady:
    how many requests of request_len tokens Capacity's closed form allows. wait: seconds in the
    queue; first_token: from arrival to the first token; each_token: between tokens after it.
    arrivals_s: from the first arrival to the last; overload: how many times longer the work took
    (None: it was kept up with). idle: spans of seconds in which nothing ran. preempted_s: when
    a request gave its blocks back (of a picture, in no document). latencies: what the
    percentiles are of. replicas: each of several (() where there is one); steps, blocks and
    points are of number `busiest` then, counts and waits of all. copies: data-parallel ones of
    a replica, each of which stands among the replicas. prefix_groups: prefix hits of each cache
    group, of all replicas (() where prefixes are not cached)."""

    trace: str
    requests: int
    counts: Counts
    simulated_s: float
    busy_s: float
    steps: int
    max_running: int
    mean_running: float
    peak_in_use: int
    usable_blocks: int
    bytes_per_block: int
    prefix_caching: bool
    pool: PoolStats
    ran_dry: RanDry | None
    largest_gap: Gap | None
    requests_steady: int | None
    request_len: int
    points: tuple[Point, ...]
    wait: Percentiles | None = field(init=False)
    first_token: Percentiles | None = field(init=False)
    each_token: Percentiles | None = field(init=False)
    arrivals_s: float = 0.0
    overload: float | None = field(init=False)
    idle: tuple[tuple[float, float], ...] = ()
    preempted_s: tuple[float, ...] = ()
    latencies: Latencies = field(default_factory=Latencies)
    replicas: tuple[ReplicaShare, ...] = ()
    busiest: int = 0
    copies: int = 1
    prefix_groups: tuple[GroupHits, ...] = ()

    def __post_init__(self) -> None:
        times = self.latencies
        for name in ("wait", "first_token", "each_token"):
            object.__setattr__(self, name, percentiles(getattr(times, name)))
        late = overload(self.arrivals_s, self.simulated_s, times.longest_service)
        object.__setattr__(self, "overload", late)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were cached."""
        return self.counts.hit_tokens / max(1, self.counts.prompt_tokens)

    @property
    def prefix_block_hit_rate(self) -> float | None:
        """Share of the trace's own prefix blocks that were cached; None where it has none."""
        blocks = self.counts.prefix_blocks
        return self.counts.hit_prefix_blocks / blocks if blocks else None

    def to_json(self) -> Mapping[str, Any]:
        """Plain values, for `report=json`; the points of the plot are left out."""
        told = [each.name for each in fields(self) if each.name not in _OF_PICTURES]
        return {name: _plain(getattr(self, name)) for name in told} | {
            "hit_rate": self.hit_rate,
            "prefix_block_hit_rate": self.prefix_block_hit_rate,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
