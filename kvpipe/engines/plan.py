"""One engine's whole answer, of whatever kind the engine is: what is compared side by side.

`plan_engine` asks a planned engine its four questions, for each pipeline stage, and keeps the
poorest stage's counts: a request needs its place on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvpipe.engines.planned import Budget, PlannedEngine, Pools, Question, Start
from kvpipe.engines.pools import EnginePool, Mark, weakest
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.edges import largest

MOST_REQUESTS = 2**24


@dataclass(frozen=True, kw_only=True)
class Users:
    """Requests of the asked length at once: all reading their prompts, all decoding; limit: what
    the next one lacks."""

    peak: int
    steady: int
    limit: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Bytes of the budget that hold nothing a request reads, with that many users decoding."""

    name: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """engine: title with its release. budget: of the poorest rank. tokens: of requests of the
    asked length that the pools hold decoding, parts of a request counted. longest: tokens of one
    request, alone. needed_bytes: what one request of the length must keep, on that rank, the same
    for every engine."""

    engine: str
    source: str
    differs: str
    length: int
    budget: Budget
    pools: tuple[EnginePool, ...]
    max_requests: int | None
    users: Users
    tokens: int
    longest: int
    needed_bytes: int
    lost: tuple[Loss, ...]
    printed: tuple[str, ...]
    start: Start
    notes: tuple[str, ...] = ()

    @property
    def mark(self) -> Mark:
        """The weakest of what its pools rest on."""
        return weakest([pool.mark for pool in self.pools])


def plan_engine(engine: PlannedEngine, question: Question) -> EnginePlan:
    """ConfigError for what the engine refuses or nobody has read, DoesNotFit where it has too few
    bytes."""
    engine = engine.asked(question)
    by_rank = [(rank, engine.budget(question, rank)) for rank in question.ranks]
    made = [engine.pools(question, rank, budget.num_bytes) for rank, budget in by_rank]
    pools = _of_all_ranks(made)
    poorest = min(range(len(made)), key=lambda i: by_rank[i][1].num_bytes)
    rank, budget = by_rank[poorest]
    return assembled(
        Named(engine=engine.title, source=engine.source, differs=engine.differs),
        Asked(length=question.length, context=question.model.context_length, layers=rank.layers),
        budget,
        pools,
        printed=engine.printed(question, pools),
        start=engine.start(question, pools),
    )


@dataclass(frozen=True, kw_only=True)
class Named:
    """Whose answer it is."""

    engine: str
    source: str
    differs: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Of what: tokens of a request, the model's context, the layers of the rank of the budget."""

    length: int
    context: int
    layers: Sequence[CacheLayer]


def assembled(
    named: Named,
    asked: Asked,
    budget: Budget,
    pools: Pools,
    *,
    printed: tuple[str, ...],
    start: Start,
) -> EnginePlan:
    """The answer of an engine of either kind: what requests find in its pools, and what is lost."""
    needed = needed_bytes(asked.layers, asked.length)
    users = users_of(pools, asked.length)
    return EnginePlan(
        engine=named.engine,
        source=named.source,
        differs=named.differs,
        length=asked.length,
        budget=budget,
        pools=pools.pools,
        max_requests=pools.max_requests,
        users=users,
        tokens=tokens_held(pools, asked.length),
        longest=longest_request(pools, asked.context),
        needed_bytes=needed,
        lost=tuple(losses(pools, budget.num_bytes, users.steady, asked.length, needed)),
        printed=printed,
        start=start,
        notes=pools.notes,
    )


def _of_all_ranks(made: Sequence[Pools]) -> Pools:
    """Pools of one name are as large as the smallest of them on any stage."""
    least: dict[str, EnginePool] = {}
    for pools in made:
        for pool in pools.pools:
            held = least.setdefault(pool.name, pool)
            if pool.count < held.count:
                least[pool.name] = pool
    limits = [pools.max_requests for pools in made if pools.max_requests is not None]
    return replace(
        made[0], pools=tuple(least.values()), max_requests=min(limits) if limits else None
    )


# --- what requests find in it ---
def users_of(pools: Pools, length: int) -> Users:
    if pools.context is not None and length > pools.context:
        return Users(peak=0, steady=0, limit=f"the context of {pools.context:,} tokens a request")
    peak = _most(pools, lambda n: _holds(pools, n, length, True))
    steady = _most(pools, lambda n: _holds(pools, n, length, False))
    return Users(peak=peak, steady=steady, limit=_limit(pools, steady + 1, length))


def _holds(pools: Pools, requests: int, length: int, prefilling: bool) -> bool:
    return all(pool.holds(requests, length, prefilling) for pool in pools.pools)


def _limit(pools: Pools, requests: int, length: int) -> str:
    for pool in pools.pools:
        if not pool.holds(requests, length, False):
            return f"pool of {pool.name}"
    return "requests at once"


def _most(pools: Pools, serves: Callable[[int], bool]) -> int:
    most = MOST_REQUESTS if pools.max_requests is None else pools.max_requests
    return largest(1, most, serves) or 0


def tokens_held(pools: Pools, length: int) -> int:
    """Of requests of that length, as many as the pools hold decoding, parts of one counted."""
    shares = [
        pool.count / units for pool in pools.pools if (units := pool.demand.units(1, length, False))
    ]
    if pools.max_requests is not None:
        shares.append(float(pools.max_requests))
    return int(length * min(shares, default=0.0))


def longest_request(pools: Pools, context: int) -> int:
    """Tokens of the longest request that runs alone, up to the context."""
    most = min(context, pools.context or context)
    return largest(1, most, lambda length: _holds(pools, 1, length, True)) or 0


def needed_bytes(layers: Sequence[CacheLayer], length: int) -> int:
    """Bytes that one decoding request of that length must keep on a rank: what its layers will
    still read, in the smallest blocks. The same measure for every engine."""
    limits = RequestLimits(max_model_len=length, max_num_batched_tokens=1)
    total = 0
    for layer in layers:
        if layer.shares_with is not None or not layer.spec.holds_blocks:
            continue
        spec = layer.spec
        if not spec.is_state:
            smallest = max((a.tokens_per_row for a in spec.page_arrays()), default=1)
            spec = spec.with_block_size(smallest)
        total += spec.steady_blocks(length, limits) * spec.real_page_size_bytes
    return total


def losses(pools: Pools, budget: int, users: int, length: int, needed: int) -> list[Loss]:
    """Where the budget's bytes are that hold nothing these users read; the largest first."""
    found = [
        Loss(
            name="in no pool: rounding, padding, reserves, a limit on requests",
            num_bytes=max(0, budget - sum(pool.num_bytes for pool in pools.pools)),
        )
    ]
    held = 0
    for pool in pools.pools:
        used = min(pool.count, pool.demand.units(users, length, False))
        held += int(used * pool.unit_bytes)
        idle = int((pool.count - used) * pool.unit_bytes)
        found.append(Loss(name=f"idle in the pool of {pool.name}", num_bytes=idle))
    beyond = Loss(name="held beyond what is read", num_bytes=max(0, held - users * needed))
    return sorted((loss for loss in [*found, beyond] if loss.num_bytes), key=lambda x: -x.num_bytes)
