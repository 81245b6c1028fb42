"""How many requests a running server holds where the memory is an estimate: at the low end of its
range, at its best value and at the high end. Three verdicts for the users that were asked for.

`kvpipe run`, `find`, `compare` and `replay` all decide by these three: fits (at the low end, too),
may not fit (the range straddles what is needed, on whichever side of the best value), does not fit
(not at the high end, either).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpipe.answers.card_room import check_card, short_of_card
from kvpipe.answers.engine_question import question_of
from kvpipe.answers.high_end import most_memory
from kvpipe.answers.low_end import users_at_low_end
from kvpipe.answers.trials import asked_of_a_copy
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import End, PlannedEngine
from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared, plan_with, profile_ranks
from kvpipe.stages.profiling.base import MemoryProfile
from kvpipe.text.figures import ends_of, size

VERDICTS = ("fits", "may not fit", "does not fit")


@dataclass(frozen=True, kw_only=True)
class Held:
    """users: requests of the asked length at once, running, on one copy. cache_bytes: of the
    poorest rank."""

    users: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Served:
    """At the two ends of an estimate, and at its best value; all three alike where the memory is
    none."""

    low: Held
    best: Held
    high: Held

    def word(self, asked: int) -> str:
        """The verdict on so many users of a copy."""
        fits, may, does_not = VERDICTS
        if self.low.users >= asked and self.best.users >= asked:
            return fits
        straddles = self.best.users >= asked or self.high.users >= asked
        return may if straddles else does_not

    @property
    def cache_words(self) -> str:
        """`2.70 GiB of cache (1.10 to 3.90)`."""
        ends = f" ({self.cache_ends})" if self.cache_ends else ""
        return f"{size(self.best.cache_bytes)} of cache{ends}"

    @property
    def cache_ends(self) -> str:
        """`1.10 to 3.90`; "" where nothing of it is estimated."""
        low, best, high = (end.cache_bytes for end in (self.low, self.best, self.high))
        return ends_of(best, low, high) if low != high else ""

    @property
    def users_ends(self) -> str:
        """`47 to 51`; "" where both ends hold as many."""
        low, high = self.low.users, self.high.users
        return f"{low:,} to {high:,}" if low != high else ""


def served_by_engine(prepared: Prepared, engine: PlannedEngine) -> Served:
    """Of an engine that is planned only. ConfigError as of its plan."""

    def at(end: End) -> Held:
        try:
            plan = plan_engine(engine, question_of(prepared, end))
        except DoesNotFit:
            return Held()
        return Held(users=running(plan), cache_bytes=plan.budget.num_bytes)

    return Served(low=at("low"), best=at("best"), high=at("high"))


def running(plan: EnginePlan) -> int:
    """Requests that decode at once, where one can read its prompt."""
    return plan.users.steady if plan.users.peak else 0


def served_by_blocks(prepared: Prepared) -> Served:
    """Of an engine whose blocks kvpipe plans, as `kvpipe run` decides."""
    high = _most_held(prepared)
    try:
        check_card(prepared)
        profile = profile_ranks(prepared)
    except DoesNotFit:
        return Served(low=Held(), best=Held(), high=high or Held())
    memory = profile.available_kv_bytes
    least = min(rank.available_kv.at_least for rank in profile.ranks)
    try:
        plan = plan_with(prepared, memory, compared=())
    except DoesNotFit:
        best = Held(cache_bytes=min(memory))
        return Served(low=Held(cache_bytes=least), best=best, high=high or best)
    best = _held(prepared, plan, memory)
    low = Held(users=_surely(plan, profile, best.users), cache_bytes=least)
    return Served(low=low, best=best, high=high or best)


def served(prepared: Prepared) -> Served:
    """By the request's engine, of whichever kind it is."""
    engine = prepared.config.plugins["engine"].make(Engine)
    if isinstance(engine, PlannedEngine):
        return served_by_engine(prepared, engine)
    return served_by_blocks(prepared)


def held_at_high_end(prepared: Prepared) -> Held | None:
    """What the high end of the memory's estimate holds, where that is the users that were asked
    for, and the card has it, which a size set by hand does not say."""
    high = served(prepared).high
    if high.users < asked_of_a_copy(prepared):
        return None
    try:
        return None if short_of_card(prepared, "high") else high
    except DoesNotFit:  # by the best value; a size by hand has no other
        return high if prepared.config.cache.kv_cache_memory_bytes is None else None


def refused(prepared: Prepared, error: DoesNotFit) -> DoesNotFit:
    """The refusal; where the high end of the estimate would hold what was asked for, with that
    said: it may not fit."""
    high = held_at_high_end(prepared)
    return error if high is None else error.that_may_fit(straddling_words(high))


def straddling_words(high: Held) -> str:
    """Why what the best value refuses is no certain refusal."""
    return (
        "may not fit: the memory is an estimate, whose best value is refused and whose high end, "
        f"{size(high.cache_bytes)} of cache, would hold it"
    )


def _held(prepared: Prepared, plan: Plan, memory: Sequence[int]) -> Held:
    cap, most = plan.capacity, prepared.resolved.max_num_seqs
    users = most if cap is None else min(cap.requests_running, most)
    if cap is not None and not cap.requests_at_peak:
        users = 0
    return Held(users=users, cache_bytes=min(memory))


def _surely(plan: Plan, profile: MemoryProfile, most: int) -> int:
    if profile.over_at_worst_bytes:
        return 0
    return users_at_low_end(plan, profile, most)


def _most_held(prepared: Prepared) -> Held | None:
    """At the high end of the memory; None where there is no other than the best value."""
    try:
        memory = most_memory(profile_ranks(prepared))
    except DoesNotFit as error:
        memory = error.most_bytes
    if len(memory) != len(prepared.resolved.ranks) or min(memory) <= 0:
        return None
    try:
        return _held(prepared, plan_with(prepared, memory, compared=()), memory)
    except DoesNotFit:
        return Held(cache_bytes=min(memory))
