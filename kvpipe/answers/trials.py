"""A request with some settings changed, planned anew: what advice is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvpipe.answers.log_memory import profile_after
from kvpipe.answers.low_end import missing_at_low_end
from kvpipe.cache.load import of_a_copy
from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared, plan_with, prepare
from kvpipe.request.changed import changed
from kvpipe.request.want import requests_asked
from kvpipe.stages.profiling.base import MemoryProfile

Promise = Callable[[Plan], bool]


def fits(plan: Plan) -> bool:
    """A request of the planned length can run."""
    return plan.capacity is None or plan.capacity.requests_at_peak > 0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A fresh plan of a request with some settings changed."""

    prepared: Prepared
    profile: MemoryProfile
    plan: Plan

    @property
    def is_sure(self) -> bool:
        """The users that were asked for fit where all that is estimated is as large as it may be,
        too: its own report says that it fits, not that it may not."""
        asked = asked_of_a_copy(self.prepared)
        missing = missing_at_low_end(self.plan, self.profile, asked)
        return not (self.profile.over_at_worst_bytes or missing)

    @property
    def serves(self) -> bool:
        """As many users at once as were asked for, by memory and by the scheduler."""
        held, most = self.plan.capacity, self.prepared.resolved.max_num_seqs
        asked = asked_of_a_copy(self.prepared)
        return held is None or min(held.requests_running, most) >= asked


def asked_of_a_copy(prepared: Prepared) -> int:
    """Of the users that were asked for, those of one copy of the ranks."""
    return of_a_copy(requests_asked(prepared.config.want), prepared.resolved.parallel.dp)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a change must bring about. surely: at the low end of an estimate, too."""

    promise: Promise = fits
    surely: bool = False

    def is_met(self, trial: Trial) -> bool:
        return self.promise(trial.plan) and trial.serves and (trial.is_sure or not self.surely)


ANY = Goal()  # it fits, and serves the users that were asked for


def replanned(prepared: Prepared, changes: Mapping[str, Any]) -> Trial:
    """The request with the changes, planned anew. KvpipeError where it is refused."""
    made = prepare(changed(prepared.raw, changes))
    profile = profile_after(prepared, made)
    plan = plan_with(made, profile.available_kv_bytes, compared=())
    return Trial(prepared=made, profile=profile, plan=plan)


def planned_or_why(prepared: Prepared, changes: Mapping[str, Any]) -> Trial | str:
    """The same; where it is refused, the first line that says why."""
    try:
        return replanned(prepared, changes)
    except KvpipeError as error:
        return error.lines()[0]


def tried(prepared: Prepared, changes: Mapping[str, Any]) -> Trial | None:
    """The same; None where it is refused, or holds nothing."""
    trial = planned_or_why(prepared, changes)
    return None if isinstance(trial, str) or not fits(trial.plan) else trial
