"""What a plan's figures follow as a request grows longer, and what of it must stay as it is.

Blocks of a request go with its length as the specs' own rhythms say it (`specs/rhythm.py`); all
else of a plan must be alike at both ends of a stretch for a figure in between to be known. Groups
in equal slots are chosen for one length: of such a plan no other length is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from kvpipe.answers.high_end import capacity_at_high_end
from kvpipe.answers.low_end import missing_at_low_end
from kvpipe.cache.plan import KVCacheGroupSpec, Plan
from kvpipe.errors import SpecError
from kvpipe.page.position import Position
from kvpipe.pipeline import Prepared, block_rules
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.rhythm import Rhythm
from kvpipe.stages.profiling.base import MemoryProfile

LONGEST_PERIOD = 1 << 14  # tokens; beyond it nothing is said between stops
LENGTH_PLACE = "{length}"


@dataclass(frozen=True, kw_only=True)
class Alike:
    """What does not change with the length in a stretch. head: the verdict up to its device, the
    length as LENGTH_PLACE. usable_blocks, low_blocks, high_blocks: for requests, at best and at the
    ends of the estimate (None: no estimate). seqs: the scheduler's bound. sure: one request is held
    at the low end, too. layout: of the groups and blocks of every rank."""

    head: str
    status: str
    serve: tuple[str, ...]
    no_serve: str
    card_bytes: int
    copies: int
    cache_bytes: int
    low_bytes: int
    high_bytes: int
    usable_blocks: int
    low_blocks: int | None
    high_blocks: int | None
    seqs: int | None
    sure: bool
    layout: object


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Of one plan. figures: name -> number, which go with the length; causes' shares by `cause
    fixed` and `cause each`. starts: lengths where a stretch begins. edges: (r, m), m above 1:
    between two of them no block count changes. period: of all of it, in tokens."""

    alike: Alike
    figures: dict[str, int]
    starts: frozenset[int]
    edges: tuple[tuple[int, int], ...]
    period: int


def counts_of(
    made: Prepared, profile: MemoryProfile, plan: Plan, position: Position
) -> Counts | None:
    """None where no length but this one is known from the plan."""
    cap, rhythms = plan.capacity, list(_rhythms(plan))
    if cap is None or None in rhythms or not _groups_stay(made, plan):
        return None
    known = [rhythm for rhythm in rhythms if rhythm is not None]
    period = lcm(1, *(s.period or 2 * LONGEST_PERIOD for r in known for s in r.stretches))
    if period > LONGEST_PERIOD:
        return None
    figures = {"peak": cap.peak_blocks, "steady": cap.steady_blocks}
    figures["request_bytes"] = position.request_bytes
    for share in position.shares:
        figures[f"{share.cause} fixed"] = share.fixed
        figures[f"{share.cause} each"] = share.each
    edges = {(r % m, m) for rhythm in known for r, m in rhythm.edges if m > 1}
    return Counts(
        alike=_alike(made, profile, plan, position),
        figures=figures,
        starts=frozenset(s.start for rhythm in known for s in rhythm.stretches if s.start > 1),
        edges=tuple(sorted(edges, key=lambda edge: (edge[1], edge[0]))),
        period=period,
    )


def most_held_before(plan: Plan, counts: Counts, length: int) -> int:
    """Blocks of a decoding request of fewer tokens than `length` that holds most: one of the last
    period's does. Counts rise at edges alone."""
    widest = max(plan.ranks, key=lambda rank: rank.config.bytes_per_block)
    low = max(1, length - counts.period)
    lengths = {low, length - 1} | {n for n in counts.starts if low <= n < length}
    for r, m in counts.edges:
        lengths.update(range(low + (r - low) % m, length, m))
    return max(
        (
            sum(group.spec.steady_blocks(n, plan.limits) for group in widest.config.groups)
            for n in lengths
            if 0 < n < length
        ),
        default=0,
    )


def _alike(made: Prepared, profile: MemoryProfile, plan: Plan, position: Position) -> Alike:
    length, device = plan.limits.max_model_len, made.resolved.device.name
    said, on, _ = position.says.partition(f" on {device}")
    tokens = f"{length:,} token" + ("s" if length != 1 else "")
    high = capacity_at_high_end(plan, profile)
    assert plan.capacity is not None
    return Alike(
        head=said.replace(tokens, LENGTH_PLACE) + on,
        status=position.status,
        serve=tuple(_with_place(position.serve, length)),
        no_serve=position.no_serve,
        card_bytes=position.card_bytes,
        copies=position.copies,
        cache_bytes=position.cache_bytes,
        low_bytes=position.low_bytes,
        high_bytes=position.high_bytes,
        usable_blocks=plan.capacity.usable_blocks,
        low_blocks=_low_blocks(plan, profile),
        high_blocks=high.usable_blocks if high else None,
        seqs=made.resolved.max_num_seqs,
        sure=not missing_at_low_end(plan, profile),
        layout=[
            (rank.config.num_blocks, [_told(group, length) for group in rank.config.groups])
            for rank in plan.ranks
        ],
    )


def _told(group: KVCacheGroupSpec, length: int) -> object:
    """A state that is kept for a whole request stands in a block as long as that."""
    spec = group.spec
    if spec.is_state and spec.block_size == length:
        return group.layer_names, spec.kind, spec.page_size_bytes, spec.own_fields()
    return group


def _with_place(serve: str, length: int) -> Iterator[str]:
    """The words of a command, its length left open."""
    words = serve.split(" ") if serve else []
    for flag, word in zip(["", *words], words, strict=False):
        is_length = flag == "--max-model-len" and word == str(length)
        yield LENGTH_PLACE if is_length else word


def _low_blocks(plan: Plan, profile: MemoryProfile) -> int | None:
    """For requests at the low end of the estimate, on the rank that has fewest of them."""
    assert plan.capacity is not None
    reserved = plan.num_blocks - plan.capacity.usable_blocks
    ranks = zip(profile.ranks, plan.ranks, strict=True)
    blocks = [
        memory.available_kv.low_bytes // rank.config.bytes_per_block - reserved
        for memory, rank in ranks
        if memory.available_kv.low_bytes is not None and rank.config.bytes_per_block
    ]
    return min(blocks, default=None)


def _groups_stay(made: Prepared, plan: Plan) -> bool:
    """Whether the groups are the same at every length: equal slots are chosen for one."""
    if plan.slots is not None:
        return False
    specs = {layer.spec for rank in made.resolved.ranks for layer in rank.layers}
    return block_rules(made.config).groups != "slots" or len(specs) == 1


def _rhythms(plan: Plan) -> Iterator[Rhythm | None]:
    """Of blocks, while prompts are read and while requests decode, and of tokens."""
    for spec in {group.spec for rank in plan.ranks for group in rank.config.groups}:
        yield from (spec.rhythm(plan.limits, in_flight) for in_flight in (False, True))
        yield _of_tokens(spec, plan.limits)


def _of_tokens(spec: KVCacheSpec, limits: RequestLimits) -> Rhythm | None:
    try:
        return spec.with_block_size(1).rhythm(limits, False)
    except SpecError:  # blocks of one token are illegal here, and all places count as needed
        return spec.rhythm(limits, False)
