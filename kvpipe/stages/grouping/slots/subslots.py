"""Sub-slots: for layers with states, attention in small blocks of which many share a slot.

A state forces slots as large as itself, and an attention block that fills one is half empty on
average in every request. Here all attention layers of the widest kind lie in one table of the
smallest blocks, k of them in a slot of k blocks exactly, and states fill slots that are a whole
number of these blocks: so nothing of a slot is lost, and all states may lie in one table.

What this saves depends on what else runs: a slot's places serve one table, and a request's last
slot is shared with others. Counted with whole slots a request takes more than in equal slots; that
is what the plan promises, and what it brings beyond is measured by replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.errors import SpecError
from kvpipe.specs.base import KVCacheSpec, cdiv
from kvpipe.stages.grouping.slots.asked import SlotGroups, SlotRequest
from kvpipe.stages.grouping.slots.kinds import Blocks, Kind, Life, lives_of
from kvpipe.stages.grouping.slots.repack import of_specs
from kvpipe.stages.grouping.slots.stages import distinct_stages
from kvpipe.stages.grouping.slots.weights import ONE, Weights

RULE = "sub-slots"


def with_subslots(request: SlotRequest, equal: SlotGroups) -> SlotGroups | None:
    """equal: the groups in equal slots, whose facts stand beside. None where there are no states
    beside layers that grow, or where nothing is read in small blocks."""
    stages = distinct_stages(request.ranks)
    if len(stages) != 1:
        return None
    blocks = Blocks(quantum=request.quantum, kernels=request.kernel_sizes)
    lives = lives_of(stages, blocks)
    states = [life for life in lives if _is_state(life)]
    small = max((life for life in lives if not life.is_fixed), key=_width, default=None)
    if not states or small is None or not blocks.is_read(small.sizes[0]):
        return None
    weights = Weights(lives, request.limits, request.options)
    memory = min((m for m in request.memory if m > 0), default=0)
    found = [plan for slot in _slots(states) if (plan := _plan(lives, small, slot)) is not None]
    if not found:
        return None
    best = min(found, key=lambda plan: plan.cost(weights, memory))
    (layers,) = stages
    slots = equal.facts.compared
    groups = tuple(table.group(layers) for table in best.tables)
    steady = sum(
        group.spec.steady_blocks(request.limits.max_model_len, request.limits)
        for group in equal.groups
    )
    width = max(_bytes(group) for group in equal.groups)
    facts = replace(
        equal.facts,
        rule=RULE,
        never_worse_than=(),
        prefix_grain=0,
        compared=(("equal slots", len(equal.groups), steady * width), *slots),
    )
    return SlotGroups(groups=groups, facts=facts)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Layers of one life, so many of each kind from `first` on, in blocks of so many tokens.
    per_slot: of these in a slot."""

    life: Life
    first: tuple[int, ...]
    counts: tuple[int, ...]
    tokens: int
    per_slot: int = 1

    def slot_spec(self, kind: Kind) -> KVCacheSpec:
        spec = kind.sizes[self.tokens]
        return spec if self.per_slot == 1 else spec.with_block_size(self.tokens * self.per_slot)

    def group(self, layers: Mapping[str, KVCacheSpec]) -> KVCacheGroupSpec:
        specs: dict[str, KVCacheSpec] = {}
        for kind, first, count in zip(self.life.kinds, self.first, self.counts, strict=True):
            mine = [name for name, spec in layers.items() if spec == kind.spec]
            specs.update(dict.fromkeys(mine[first : first + count], self.slot_spec(kind)))
        ordered = {name: specs[name] for name in layers if name in specs}
        return replace(of_specs(ordered), blocks_per_slot=self.per_slot)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    slot_bytes: int
    tables: tuple[_Table, ...]

    def cost(self, weights: Weights, memory: int) -> int:
        """As equal slots are weighed, but a small block costs its own bytes alone; beside it, once,
        the slot that the small blocks of all requests fill in part."""
        limits, total = weights.limits, 0
        for length, lower in zip(weights.lengths, weights.lower, strict=True):
            held = sum(
                table.life.counted(table.tokens).steady_blocks(length, limits)
                * (self.slot_bytes // table.per_slot)
                for table in self.tables
            )
            total += held * ONE // max(1, lower)
        parted = self.slot_bytes * ONE // memory if memory else 0
        return total // len(weights.lengths) + len(self.tables) * weights.price + parted


def _slots(states: Sequence[Life]) -> list[int]:
    """Bytes that some number of states of one life fill, ascending."""
    fills: set[int] = set()
    for life in states:
        fills.update(accumulate(page for page, count in _pages(life) for _ in range(count)))
    return sorted(fills)


def _pages(life: Life) -> list[tuple[int, int]]:
    """(bytes of a page, layers) of each kind, in the smallest blocks."""
    return [(kind.page(life.sizes[0]), kind.count) for kind in life.kinds]


def _plan(lives: Sequence[Life], small: Life, least: int) -> _Plan | None:
    """A slot of at least so many bytes that small blocks fill, and all layers in it; None where
    that is no two blocks, or where some layers find no room."""
    tokens = small.sizes[0]
    per_slot = cdiv(least, small.width)
    slot = per_slot * small.width
    if per_slot < 2 or not _grows_evenly(small, tokens, per_slot):
        return None
    tables: list[_Table] = []
    for life in lives:
        if life is small:
            whole = tuple(kind.count for kind in life.kinds)
            none = (0,) * len(whole)
            made = [_Table(life=life, first=none, counts=whole, tokens=tokens, per_slot=per_slot)]
        else:
            made = list(_filled(life, slot))
        if not made:
            return None
        tables += made
    return _Plan(slot_bytes=slot, tables=tuple(tables))


def _grows_evenly(life: Life, tokens: int, times: int) -> bool:
    """Whether so many blocks in one are as many times its bytes: no alignment of a page's own."""
    try:
        return all(
            kind.sizes[tokens].with_block_size(tokens * times).page_size_bytes
            == kind.page(tokens) * times
            for kind in life.kinds
        )
    except SpecError:
        return False


def _filled(life: Life, slot: int) -> Iterator[_Table]:
    """Tables of as many layers as fit, one slot a block, in the largest blocks that hold these."""
    left = [kind.count for kind in life.kinds]
    least = life.sizes[0]
    while any(left):
        counts, room = [], slot
        for kind, have in zip(life.kinds, left, strict=True):
            counts.append(min(have, room // kind.page(least)))
            room -= counts[-1] * kind.page(least)
        if not any(counts):
            return
        first = tuple(k.count - have for k, have in zip(life.kinds, left, strict=True))
        left = [have - taken for have, taken in zip(left, counts, strict=True)]
        tokens = max(t for t in life.sizes if t == least or _width_of(life, counts, t) <= slot)
        yield _Table(life=life, first=first, counts=tuple(counts), tokens=tokens)


def _width_of(life: Life, counts: Sequence[int], tokens: int) -> int:
    return sum(n * kind.page(tokens) for kind, n in zip(life.kinds, counts, strict=True))


def _is_state(life: Life) -> bool:
    return all(kind.spec.is_state for kind in life.kinds)


def _width(life: Life) -> int:
    return life.width


def _bytes(group: KVCacheGroupSpec) -> int:
    return sum(group.layer_spec(name).page_size_bytes for name in group.layer_names)
