"""A refusal -> the same with what to change, each change planned: one setting, or two together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kvpipe.answers.remedies import ways_out
from kvpipe.answers.together import together
from kvpipe.answers.trials import ANY, Goal
from kvpipe.answers.ways_in_words import ways_told
from kvpipe.cache.plan import Plan
from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared
from kvpipe.text.figures import size


def advised(prepared: Prepared, error: DoesNotFit) -> DoesNotFit:
    """The error with the changes that were planned and fit, as one more line."""
    can_be_allocated = Goal(promise=partial(_can_be_allocated, error.available_bytes))
    line, changes = ways_line(prepared, can_be_allocated if error.stage == "allocation" else ANY)
    return error.with_advice(line + _own_default(prepared, error), changes)


def _own_default(prepared: Prepared, error: DoesNotFit) -> str:
    """Whose the budget of a CPU is, where nobody set it and it is what does not hold the
    request."""
    plugin, key = prepared.config.plugins["profiling"], "profiling.budget_bytes"
    budget = getattr(plugin.options, "budget_bytes", None)
    is_said = key in prepared.said or "profiling" in prepared.said
    if is_said or prepared.resolved.device.type != "cpu" or budget not in error.available_bytes:
        return ""
    return f". {size(budget)} is kvpipe's own default for a CPU: {key} says another"


def _can_be_allocated(free: tuple[int, ...], plan: Plan) -> bool:
    """Whether the buffers of every rank that differs from the others fit in what is free here."""
    return sum(size for size in {rank.config.size_bytes for rank in plan.ranks}) <= min(free)


def ways_line(prepared: Prepared, goal: Goal = ANY) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """What meets the goal, in words, and as changes."""
    ways = ways_out(prepared, goal)
    return ways_told([*ways, *together(prepared, goal, ways)])
