"""The same request planned once more, in the memory that the run has found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpipe.cache.plan import Plan
from kvpipe.pipeline import Prepared, plan_with, prepare
from kvpipe.request.changed import changed


def replan(prepared: Prepared, memory: tuple[int, ...], changes: Mapping[str, Any]) -> Plan:
    """The same request with some settings changed, in `memory` bytes a rank."""
    made = prepare(changed(prepared.raw, changes))
    ranks = len(made.resolved.ranks)
    return plan_with(made, memory if len(memory) == ranks else memory[:1] * ranks, compared=())
