"""Settings -> Position: the request is prepared and planned anew, as `kvpipe run` would plan it.

Nothing is allocated. What memory the cache has does not depend on the length of a request, so that
a profile is kept for the next length: for the same question, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvpipe.answers.engine_question import question_of
from kvpipe.answers.high_end import capacity_at_high_end, most_memory
from kvpipe.answers.low_end import users_at_low_end
from kvpipe.answers.serve_line import line_for
from kvpipe.answers.served import Held, Served, served, served_by_engine
from kvpipe.answers.uncounted import weights_left_out
from kvpipe.answers.unserved import why_none
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import PlannedEngine
from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.page.position import Position, Share, shares_of
from kvpipe.pipeline import (
    Prepared,
    demanded_of,
    plan_with,
    prepare,
    profile_ranks,
    profiling_request,
)
from kvpipe.report.accounts import replicas_of, split_bytes, split_running
from kvpipe.report.of_run import headline_of
from kvpipe.report.run_input import ReportInput
from kvpipe.report.verdict import running_at_once, verdict_of
from kvpipe.request.changed import changed
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.stages.profiling.base import MemoryProfile, ProfilingRequest


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """What a position was read off."""

    made: Prepared
    profile: MemoryProfile
    plan: Plan


@dataclass(kw_only=True)
class Planner:
    """Plans one request with some of its settings changed. raw: its composed values."""

    raw: Mapping[str, Any]
    _kept: tuple[ProfilingRequest, MemoryProfile] | None = field(default=None, repr=False)

    def position(self, changes: Mapping[str, Any]) -> Position:
        """What is refused is a position without users, with the reason."""
        return self.planned(changes)[0]

    def planned(self, changes: Mapping[str, Any]) -> tuple[Position, BlockPlan | None]:
        """The plan beside it, where it is one of blocks and was not refused."""
        try:
            made = prepare(changed(self.raw, changes))
            try:
                return self._of(made)
            except DoesNotFit as error:
                return _of_refusal(error, made), None
        except KvpipeError as error:
            says = error.lines()[0]
            return Position(status=error.status, says=says, card_bytes=0, shares=()), None

    def _of(self, made: Prepared) -> tuple[Position, BlockPlan | None]:
        engine = made.config.plugins["engine"].make(Engine)
        if isinstance(engine, PlannedEngine):
            plan = plan_engine(engine, question_of(made))
            return _of_engine(plan, made, served_by_engine(made, engine)), None
        return _of_blocks(made, self._profile(made))

    def _profile(self, made: Prepared) -> MemoryProfile:
        asked = profiling_request(made)
        if self._kept is None or self._kept[0] != asked:
            self._kept = (asked, profile_ranks(made))
        return self._kept[1]


def _of_blocks(made: Prepared, profile: MemoryProfile) -> tuple[Position, BlockPlan]:
    try:
        plan = plan_with(made, profile.available_kv_bytes, compared=())
    except DoesNotFit as error:
        error.demand = error.demand or demanded_of(profile, error)
        raise
    report, high = planned_report(made, profile, plan), capacity_at_high_end(plan, profile)
    if high and high.requests_running:
        held = Held(users=high.requests_running, cache_bytes=min(most_memory(profile)))
        report = replace(report, held_at_most=held)
    rank = _drawn(plan)
    memory, copies = profile.ranks[rank], replicas_of(made.resolved)
    one, two = (split_running(plan, rank, memory, n, copies) for n in (1, 2))
    verdict, cap, cache = verdict_of(report), plan.capacity, memory.available_kv
    users = (running_at_once(report) or 0) // report.copies
    most = made.resolved.max_num_seqs or 2**31
    position = Position(
        status=verdict.status,
        says=verdict.short,
        card_bytes=memory.total.num_bytes,
        shares=shares_of(one, two),
        copies=report.copies,
        users=report.copies * users,
        memory_users=report.copies * cap.requests_running if cap else 0,
        low_users=report.copies * users_at_low_end(plan, profile, users),
        high_users=report.copies * (min(high.requests_running, most) if high else users),
        peak_users=report.copies * report.accounts[rank].requests_peak,
        steady_users=report.copies * report.accounts[rank].requests_steady,
        request_bytes=_request_bytes(plan, rank),
        cache_bytes=cache.num_bytes,
        low_bytes=cache.num_bytes if cache.low_bytes is None else cache.low_bytes,
        high_bytes=cache.num_bytes if cache.high_bytes is None else cache.high_bytes,
        serve=line_for(made, plan),
        no_serve=why_none(made, plan),
    )
    return position, BlockPlan(made=made, profile=profile, plan=plan)


def planned_report(made: Prepared, profile: MemoryProfile, plan: Plan) -> ReportInput:
    """What a run's verdict is made from, for one user; nothing was bound."""
    resolved = made.resolved
    return ReportInput(
        headline=headline_of(resolved, plan),
        plan=plan,
        profile=profile,
        accounts=split_bytes(plan, profile, resolved.max_num_seqs, replicas_of(resolved)),
        verify=VerifyReport(reason="planned only"),
        max_num_seqs=resolved.max_num_seqs,
        weights_left_out=weights_left_out(resolved, profile),
        copies=resolved.parallel.dp,
    )


def _drawn(plan: Plan) -> int:
    """The rank that holds the fewest blocks of what it was given: the first of the poorest."""
    return min(range(len(plan.ranks)), key=lambda i: plan.ranks[i].stranded_bytes)


def _request_bytes(plan: Plan, rank: int) -> int:
    if plan.capacity is None:
        return 0
    return plan.capacity.steady_blocks * plan.ranks[rank].config.bytes_per_block


_SAID = {"fits": "IT FITS:", "may not fit": "MAY NOT FIT:"}


def _of_engine(plan: EnginePlan, made: Prepared, ends: Served) -> Position:
    """An engine with pools of its own: what its users read, and the rest of its cache."""
    word, device, copies = ends.word(1), made.resolved.device, made.resolved.parallel.dp
    said = _SAID.get(word, "DOES NOT FIT: no request of")
    return Position(
        status=word.replace(" ", "_"),
        says=f"{said} {plan.length:,} tokens on {device.name}",
        card_bytes=device.total_bytes,
        shares=_shares_of_engine(plan, device.total_bytes),
        copies=copies,
        users=copies * ends.best.users,
        memory_users=copies * ends.best.users,
        low_users=copies * ends.low.users,
        high_users=copies * ends.high.users,
        peak_users=copies * plan.users.peak,
        steady_users=copies * plan.users.steady,
        request_bytes=plan.needed_bytes,
        cache_bytes=plan.budget.num_bytes,
        low_bytes=ends.low.cache_bytes,
        high_bytes=ends.high.cache_bytes,
        serve=plan.start.command,
    )


def _shares_of_engine(plan: EnginePlan, card_bytes: int) -> tuple[Share, ...]:
    outside = {"weights": 0, "activations": 0, "other": 0}
    for step in plan.budget.steps:
        if step.num_bytes < 0:
            outside[step.name if step.name in outside else "other"] -= step.num_bytes
    rest = card_bytes - sum(outside.values()) - plan.budget.num_bytes
    return tuple(
        Share(cause=cause, fixed=fixed, each=each)
        for cause, fixed, each in (
            *((name, num_bytes, 0) for name, num_bytes in outside.items()),
            ("payload", 0, plan.needed_bytes),
            ("free_blocks", plan.budget.num_bytes, -plan.needed_bytes),
            ("not_requested", max(0, rest), 0),
        )
        if fixed or each
    )


def _of_refusal(error: DoesNotFit, made: Prepared) -> Position:
    """The card with what it was asked to hold, where that is known: the cache is one request's."""
    demand, says, high = error.demand, error.lines()[0], served(made).high.users
    status, of_all = "may_not_fit" if high else error.status, made.resolved.parallel.dp * high
    if demand is None:
        return Position(status=status, says=says, card_bytes=0, shares=(), high_users=of_all)
    names = {"weights": "weights", "activations": "activations", "KV cache": "payload"}
    fixed: dict[str, int] = {}
    for name, num_bytes in demand.parts:
        cause = names.get(name, "other")
        fixed[cause] = fixed.get(cause, 0) + num_bytes
    fixed["free_blocks"] = -demand.missing_bytes
    fixed["not_requested"] = demand.total_bytes - demand.allowed_bytes
    shares = (Share(cause=cause, fixed=n, each=0) for cause, n in fixed.items() if n)
    return Position(
        status=status,
        says=says,
        card_bytes=demand.total_bytes,
        shares=tuple(shares),
        high_users=of_all,
    )
