"""`grouping.subslots=auto`: the trace is served on equal slots and on sub-slots, and the latter are
taken where that ends sooner by a hundredth at least. Nothing of it is capacity: another trace, or
the same in another order, may leave holes where this one left none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared, plan_with, prepare
from kvpipe.request.changed import changed
from kvpipe.text.lines import Line, wrap

if TYPE_CHECKING:  # it imports numpy, which no plan does
    from kvpipe.simulation.result import ReplayResult

Play = Callable[[Plan], "ReplayResult"]

WORTH = 0.01  # share of the time until all is served
_LABEL = "sub-slots".ljust(12)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A request's plan, and the trace replayed on it."""

    prepared: Prepared
    plan: Plan
    result: ReplayResult


@dataclass(frozen=True, kw_only=True)
class Measured:
    """equal_s, subslots_s: simulated seconds until all was served (None: sub-slots were not
    replayed, reason says why). taken: whether the rest of the answer is of sub-slots."""

    equal_s: float
    subslots_s: float | None
    taken: bool
    reason: str = ""

    def lines(self, width: int) -> list[Line]:
        """As the lines of a replay: a label, and the fact beside it."""
        facts = wrap(self.in_words(), width, "title", indent=" " * len(_LABEL))
        first, *others = (line.text for line in facts)
        return [Line(_LABEL + first[len(_LABEL) :]), *map(Line, others)]

    def in_words(self) -> str:
        if self.subslots_s is None:
            return f"not taken: {self.reason}"
        share = self.subslots_s / self.equal_s - 1 if self.equal_s else 0.0
        told = (
            f"this trace is served {abs(share):.1%} {'later' if share > 0 else 'sooner'} than in "
            f"equal slots ({self.subslots_s:,.2f} s for {self.equal_s:,.2f} s, simulated)"
        )
        if self.taken:
            return f"taken: {told}; grouping.subslots=on plans so without a replay"
        return f"not taken: {told}{self.reason}; at least {WORTH:.0%} sooner is asked"

    def to_json(self) -> Mapping[str, Any]:
        return {
            "equal_s": self.equal_s,
            "subslots_s": self.subslots_s,
            "taken": self.taken,
            "reason": self.reason,
        }


def measured_subslots(
    equal: Served, memory: Sequence[int], play: Play
) -> tuple[Served, Measured | None]:
    """What the answer is of, and what was measured (None: nobody asked)."""
    raw = equal.prepared.raw
    if raw["grouping"].get("subslots") != "auto":
        return equal, None
    seconds = equal.result.simulated_s
    try:
        prepared = prepare(changed(raw, {"grouping.subslots": "on"}))
        plan = plan_with(prepared, memory, compared=())
    except KvpipeError as error:
        reason = error.lines()[0]
        return equal, Measured(equal_s=seconds, subslots_s=None, taken=False, reason=reason)
    if all(group.blocks_per_slot == 1 for group in plan.groups):
        reason = "these layers have no use for them"
        return equal, Measured(equal_s=seconds, subslots_s=None, taken=False, reason=reason)
    result = play(plan)
    fewer = result.counts.finished < equal.result.counts.finished
    sooner = not fewer and result.simulated_s <= (1 - WORTH) * seconds
    found = Measured(
        equal_s=seconds,
        subslots_s=result.simulated_s,
        taken=sooner,
        reason=", with fewer requests served" if fewer else "",
    )
    return (Served(prepared=prepared, plan=plan, result=result) if sooner else equal), found
