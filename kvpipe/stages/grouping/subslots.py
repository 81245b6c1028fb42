"""Whether sub-slots can be had, and the groups in them: `grouping.subslots`."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.errors import ConfigError, Problem
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.slots.asked import SlotGroups, SlotRequest
from kvpipe.stages.grouping.slots.options import SlotOptions
from kvpipe.stages.grouping.slots.subslots import with_subslots

KEY, WANTED = "grouping.subslots", "off, or auto"


def refuse_beside_subslots(scratch: str, slots: SlotOptions, request: GroupingRequest) -> None:
    """ConfigError naming every setting that sub-slots do not go with."""
    if problems := list(_beside(scratch, slots, request)):
        raise ConfigError(problems)


def _beside(scratch: str, slots: SlotOptions, request: GroupingRequest) -> Iterator[Problem]:
    if request.rules.groups != "slots":
        got = f"on, under engine={request.rules.name}, whose tables have one block in a slot"
        yield Problem(KEY, WANTED, got, "engine=kvpipe")
    if scratch == "on":
        got = "on, with grouping.scratch=on: a scratch slot holds whole blocks"
        yield Problem(KEY, WANTED, got, "grouping.scratch=off")
    if slots.for_engine != "kvpipe":
        got = f"on, with grouping.for_engine={slots.for_engine}, which has one block in a slot"
        yield Problem(KEY, WANTED, got, "grouping.for_engine=kvpipe")
    if len({tuple(layer.name for layer in rank) for rank in request.ranks}) > 1:
        got = "on, with pipeline stages, whose slots hold unlike numbers of small blocks"
        yield Problem(KEY, WANTED, got, "parallel.pipeline_parallel_size=1")


def in_subslots(asked: SlotRequest, equal: SlotGroups) -> SlotGroups | None:
    """The groups; None where layers have no use for sub-slots. ConfigError where prefixes would be
    lost: blocks of a table that is cached by prefix are not handed out here."""
    made = with_subslots(asked, equal)
    limits = asked.limits
    if made is None or not asked.shares_prefixes:
        return made
    if all(group.spec.caches_prefixes(limits) for group in made.groups):
        got = "on, with prefix caching: what lies in sub-slots is no prefix"
        raise ConfigError(Problem(KEY, WANTED, got, "cache.enable_prefix_caching=false"))
    return made
