"""What scratch costs and saves: pages a slot of each group, and a request's worst step, in blocks.

A step of T tokens brings each table at most ceil(T / block) new blocks; so many blocks are in
scratch at most, those that push others out of the window included. What stays is what a request of
the same length holds while it decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.cache.scratch import GroupScratch
from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.base import KVCacheSpec, RequestLimits, cdiv
from kvpipe.stages.grouping.base import GroupingRequest

ScratchChoice = Literal["auto", "on", "off"]


def uses_scratch(asked: ScratchChoice, request: GroupingRequest) -> bool:
    """`auto`: where the binding's layers can read through it, and no prefix would be lost, since
    what lies in scratch is found by nobody. ConfigError where it was asked for and cannot be."""
    if asked != "on":
        can = request.takes_scratch and not request.shares_prefixes
        return asked == "auto" and can and request.rules.groups == "slots"
    problems = []
    if request.rules.groups != "slots":
        got = f"on, under engine={request.rules.name}, which stores chunks whole"
        problems.append(Problem("grouping.scratch", "auto or off", got, "engine=kvpipe"))
    if request.shares_prefixes:
        got = "on, with prefix caching: what lies in scratch is no prefix"
        knob = "cache.enable_prefix_caching=false"
        problems.append(Problem("grouping.scratch", "auto or off", got, knob))
    if problems:
        raise ConfigError(problems)
    return True


@dataclass(frozen=True, kw_only=True)
class SteppedDemand:
    """Blocks of one request at its peak: of each group, and of the step whatever the group."""

    groups: tuple[int, ...]
    scratch: int

    @property
    def total(self) -> int:
        return sum(self.groups) + self.scratch


def group_scratch(
    group: KVCacheGroupSpec,
    pages: Sequence[tuple[int, Sequence[str]]],
    slot_bytes: int,
    read_by_others: frozenset[str],
) -> GroupScratch | None:
    """Of a group whose layers lie in a slot one after the other; None where all must be kept.

    pages: (bytes of a page, layers) in that order. read_by_others: layers whose cache other layers
    read, after layers in between have filled the scratch slots with their own.
    """
    if not pages or not group.spec.frees_tokens or read_by_others & set(group.layer_names):
        return None
    offsets, start = [], 0
    for page, names in pages:
        offsets += [(name, start + i * page) for i, name in enumerate(names)]
        start += page * len(names)
    pitch = max(page for page, _ in pages)
    unit = gcd(slot_bytes, pitch, *(offset for _, offset in offsets))
    return GroupScratch(
        pages_per_slot=slot_bytes // pitch,
        unit_bytes=unit,
        slot_units=slot_bytes // unit,
        pitch_units=pitch // unit,
        shifts=tuple((name, offset // unit) for name, offset in offsets),
    )


def stepped(
    specs: Sequence[KVCacheSpec], scratch: Sequence[GroupScratch | None], limits: RequestLimits
) -> SteppedDemand:
    """At most so many blocks does one request hold in any step; never more than without scratch.
    scratch: one a spec, or () where none uses it."""
    plain = tuple(spec.peak_blocks(limits) for spec in specs)
    if not any(scratch):
        return SteppedDemand(groups=plain, scratch=0)
    few = replace(
        limits,
        max_num_batched_tokens=min(limits.max_num_batched_tokens, 1 + limits.num_lookahead_tokens),
    )
    kept = tuple(
        most if each is None else min(most, spec.peak_blocks(few))
        for spec, each, most in zip(specs, scratch, plain, strict=True)
    )
    chunk = min(limits.tokens_in_flight, limits.max_model_len)
    slots = max(
        cdiv(cdiv(chunk, spec.tokens_per_block(limits)), each.pages_per_slot)
        for spec, each in zip(specs, scratch, strict=True)
        if each is not None
    )
    made = SteppedDemand(groups=kept, scratch=slots)
    return made if made.total < sum(plain) else SteppedDemand(groups=plain, scratch=0)
