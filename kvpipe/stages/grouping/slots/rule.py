"""The rule: layers of all ranks, limits, the plans of engines -> groups in equal slots.

First the cheapest plan that is never worse than every plan compared, then than the newest alone,
and else the newest plan's own groups, repacked. With pipeline stages the plan is made for a stage
that has the most layers of every kind; each stage has the same tables and block sizes, and slots
of its own size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from kvpipe.cache.plan import KVCacheGroupSpec, SlotFacts
from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.edges import largest
from kvpipe.stages.grouping.slots.asked import SlotGroups, SlotRequest
from kvpipe.stages.grouping.slots.baselines import Baseline
from kvpipe.stages.grouping.slots.best import Best, distinct
from kvpipe.stages.grouping.slots.ceiling import ceiling, ceilings
from kvpipe.stages.grouping.slots.equal_pages import equal_pages, one_kind_each, padded
from kvpipe.stages.grouping.slots.grain import choices, grain
from kvpipe.stages.grouping.slots.guard import Demand, Guard, Worse
from kvpipe.stages.grouping.slots.kernels import are_read
from kvpipe.stages.grouping.slots.kinds import Blocks, Life, lives_of
from kvpipe.stages.grouping.slots.partition import Chunk
from kvpipe.stages.grouping.slots.repack import of_specs, repacked
from kvpipe.stages.grouping.slots.search import Bounds, Search, SlotPlan
from kvpipe.stages.grouping.slots.stages import distinct_stages, in_order, slot_bytes
from kvpipe.stages.grouping.slots.weights import Weights, fewest_bytes

Layers = Mapping[str, KVCacheSpec]

MOST_TRIED = 24  # plans, in ascending order of cost
ROUNDS, MOST_LENGTHS = 4, 4  # of the search, each with so many lengths more at which plans failed
MOST_TABLES = 64  # where no engine's plan bounds them


def slot_groups(request: SlotRequest) -> SlotGroups:
    """The groups of all layers, and what is promised of them. SpecError where a spec does not work
    under these limits."""
    if request.reads_whole or not request.kernel_sizes:
        return _Rule(request).found()
    rules = [_Rule(request), _Rule(replace(request, reads_whole=True))]
    found = [(rule, made) for rule in rules if rule.is_read((made := rule.found()).groups)]
    if not found:
        return rules[1].found()
    _, best = min(
        found, key=lambda pair: (-len(pair[1].facts.never_worse_than), pair[0].cost(pair[1]))
    )
    return best


class _Rule:
    def __init__(self, request: SlotRequest) -> None:
        self.request, self.limits = request, request.limits
        self.stages = distinct_stages(request.ranks)
        self.most_grain = self._most_grain()
        self.blocks = Blocks(
            quantum=request.quantum,
            rule=request.options.block_sizes,
            largest=self.most_grain,
            more=frozenset(t for base in request.baselines for t in base.block_sizes),
            kernels=request.kernel_sizes,
            whole=request.reads_whole,
        )
        self.equal = request.options.for_engine == "vllm"
        lives = lives_of(self.stages, self.blocks)
        self.lives = one_kind_each(lives) if self.equal else lives
        self.weights = Weights(self.lives, self.limits, request.options)
        self.guard = Guard(self.limits)
        self.choices = self._choices()
        self.search = Search(self.choices, self.weights)

    def cost(self, made: SlotGroups) -> int:
        slot = max(slot_bytes(made.groups, self.request.ranks))
        return self.weights.cost([group.spec for group in made.groups], slot)

    def found(self) -> SlotGroups:
        if self.request.options.objective == "fewest_tables":
            bounds = Bounds(num_tables=MOST_TABLES, slot_bytes=self._all_of_one_life())
            plans = map(self._assembled, islice(self.search.plans(bounds), MOST_TRIED))
            groups = next(filter(self.is_read, plans), None)
            if groups is not None:
                return self._with_facts(groups, "fewest tables", self._not_worse_than(groups))
        *_, newest = baselines = self.request.baselines
        alone = [(newest,)] if len(distinct(baselines)) > 1 else []
        for promised in [baselines, *alone]:
            if (found := self._no_worse_than(promised)) is not None:
                rule = "equal slots of equal pages" if self.equal else "equal slots"
                return self._with_facts(found, rule, promised)
        if self.equal:
            return self._with_facts(newest.groups, f"{newest.engine}'s own groups", (newest,))
        groups = repacked(newest, self.request.ranks, self.blocks, self._repack_sizes())
        more = [base for base in self._not_worse_than(groups) if base is not newest]
        return self._with_facts(groups, f"{newest.engine} repacked", (*more, newest))

    # --- what is searched ---
    def _no_worse_than(self, promised: Sequence[Baseline]) -> tuple[KVCacheGroupSpec, ...] | None:
        """The cheapest plan that is no worse than any of these. Where the cheapest ones are worse
        at some lengths, it is looked for anew, among those that are not worse there."""
        bounds, best = self._bounds(promised), Best()
        for _ in range(ROUNDS):
            worse = self._tried(bounds, promised, best)
            if best.is_near:
                break
            known = {(cap.load, cap.length) for cap in bounds.caps}
            more = [at for at in dict.fromkeys(worse) if at.length]
            more = [at for at in more if (at.load, at.length) not in known]
            if not more:
                break
            new = [ceiling(promised, at.load, at.length) for at in more[:MOST_LENGTHS]]
            bounds = replace(bounds, caps=(*bounds.caps, *new), cost=best.cost)
        return best.groups

    def _tried(self, bounds: Bounds, promised: Sequence[Baseline], best: Best) -> list[Worse]:
        """Plans one after the other, until one is no worse or costs as much as the best. Where the
        others are worse."""
        worse: list[Worse] = []
        for number, plan in enumerate(islice(self._distinct_plans(bounds), MOST_TRIED)):
            if not number:
                best.bound = plan.cost  # no plan under these caps costs less
            if best.cost is not None and plan.cost >= best.cost:
                break
            groups = self._assembled(plan)
            if not self.is_read(groups):
                continue
            found = self._worse(groups, distinct(promised))
            if found is None:
                best.cost, best.groups = plan.cost, groups
                break
            worse.append(found)
        return worse

    def _distinct_plans(self, bounds: Bounds) -> Iterator[SlotPlan]:
        """What several choices of block sizes have in common once."""
        seen = set[tuple[int, tuple[tuple[Chunk, ...], ...]]]()
        for plan in self.search.plans(bounds):
            key = plan.slot_bytes, plan.tables
            if key not in seen:
                seen.add(key)
                yield plan

    def _bounds(self, promised: Sequence[Baseline]) -> Bounds:
        """A plan that is never worse has no more tables, and a request of one token, which holds a
        block in each, takes no more bytes, nor do requests of these lengths. (Of pipeline stages
        each has slots of its own size, which may be smaller than the plan's.)"""
        first = min(
            max(
                sum(spec.steady_blocks(1, self.limits) for spec in base.specs) * slot
                for slot in base.slot_bytes
            )
            for base in promised
        )
        each = min(life.counted(life.sizes[0]).steady_blocks(1, self.limits) for life in self.lives)
        one_stage = len(self.stages) == 1
        return Bounds(
            num_tables=min(base.num_tables for base in promised),
            slot_bytes=min(first // max(1, each * len(self.lives)), self._all_of_one_life()),
            first_token_bytes=first,
            first_blocks=each,
            ceilings=tuple(ceilings(promised, self.limits) if one_stage else ()),
        )

    def _all_of_one_life(self) -> int:
        several = self.choices if self.equal else (self.lives,)
        return max((life.width for lives in several for life in lives), default=0)

    def _most_grain(self) -> int:
        """0: no prefix is shared, any block size will do. Where the engines' plans share in coarser
        steps than asked for, those will do."""
        if not self.request.shares_prefixes:
            return 0
        if not grain((spec for one in self.stages for spec in one.values()), self.limits):
            return 0
        theirs = min(grain(base.specs, self.limits) for base in self.request.baselines)
        return max(self.request.options.max_prefix_grain, theirs)

    def _choices(self) -> Sequence[tuple[Life, ...]]:
        found: Sequence[tuple[Life, ...]] = ()
        if self.most_grain:
            found = choices(self.lives, self.most_grain, self.limits)
        found = found or (self.lives,)
        return equal_pages(found) if self.equal else found

    def _repack_sizes(self) -> frozenset[int] | None:
        if not self.most_grain:
            return None
        best = max(self.choices, key=lambda lives: sum(len(life.sizes) for life in lives))
        return frozenset(t for life in best for t in life.sizes)

    def is_read(self, groups: Sequence[KVCacheGroupSpec]) -> bool:
        return not self.request.kernel_sizes or are_read(groups, *self.request.kernels)

    # --- what is found ---
    def _assembled(self, plan: SlotPlan) -> tuple[KVCacheGroupSpec, ...]:
        """Each stage fills the chunks with its own layers, in order."""
        specs: list[dict[str, KVCacheSpec]] = []
        for life, chunks in zip(self.lives, plan.tables, strict=True):
            first = len(specs)
            specs += [{} for _ in chunks]
            for layers in self.stages:
                for at, kind in enumerate(life.kinds):
                    mine = iter([name for name, spec in layers.items() if spec == kind.spec])
                    for number, chunk in enumerate(chunks):
                        taken = islice(mine, chunk.counts[at])
                        specs[first + number].update(
                            (name, kind.sizes[chunk.tokens]) for name in taken
                        )
        tables = padded(specs) if self.equal else specs
        return tuple(of_specs(in_order(found, self.stages)) for found in tables)

    def _worse(
        self, groups: Sequence[KVCacheGroupSpec], promised: Sequence[Baseline]
    ) -> Worse | None:
        """Where a request takes more bytes than under one of these; length 0 where that is not
        known, or where fewer requests of the full length fit into this memory, of which a larger
        slot leaves more unused. None where it is no worse."""
        for base in promised:
            if (worse := self._more_than(groups, base)) is not None:
                return worse
        ours = slot_bytes(groups, self.request.ranks)
        mine = self._held([group.spec for group in groups], ours)
        for base in promised:
            its = self._held(base.specs, base.slot_bytes)
            if any(a < b for a, b in zip(mine, its, strict=True)):
                return Worse(load=self.guard.loads[0], length=0)
        return None

    def _held(self, specs: Sequence[KVCacheSpec], slots: Sequence[int]) -> tuple[int, ...]:
        """Requests at the peak, in steady state, and the longest request, in the given memory."""
        memory = self.request.memory
        if not memory:
            return ()
        blocks = min(
            (given // slot for given, slot in zip(memory, slots, strict=True) if slot), default=1
        )
        length, usable = self.limits.max_model_len, max(0, blocks - 1)

        def peak(n: int) -> int:
            return sum(spec.peak_blocks(self.limits.with_length(n)) for spec in specs)

        steady = sum(spec.steady_blocks(length, self.limits) for spec in specs)
        longest = largest(1, length, lambda n: peak(n) <= usable) or 0
        return usable // max(1, peak(length)), usable // max(1, steady), longest

    def _more_than(self, groups: Sequence[KVCacheGroupSpec], base: Baseline) -> Worse | None:
        """On the rank where this plan compares worst, and so on all: blocks are the same there."""
        slots = slot_bytes(groups, self.request.ranks)
        used = [i for i, slot in enumerate(slots) if slot]
        worst = max(used, key=lambda i: slots[i] / max(1, base.slot_bytes[i]))
        mine = Demand.of(groups, slots[worst])
        return self.guard.worse(mine, base.demand(worst))

    def _not_worse_than(self, groups: Sequence[KVCacheGroupSpec]) -> tuple[Baseline, ...]:
        bases = self.request.baselines
        return tuple(base for base in bases if self._more_than(groups, base) is None)

    def _with_facts(
        self, groups: tuple[KVCacheGroupSpec, ...], rule: str, promised: Sequence[Baseline]
    ) -> SlotGroups:
        facts = SlotFacts(
            rule=rule,
            never_worse_than=tuple(base.engine for base in promised),
            prefix_grain=grain((group.spec for group in groups), self.limits),
            bound_bytes=fewest_bytes(self.lives, self.limits.max_model_len, self.limits),
            compared=tuple(self._compared(base) for base in self.request.baselines),
        )
        return SlotGroups(groups=groups, facts=facts)

    def _compared(self, base: Baseline) -> tuple[str, int, int]:
        length, slot = self.limits.max_model_len, max(base.slot_bytes)
        blocks = sum(spec.steady_blocks(length, self.limits) for spec in base.specs)
        return base.engine, base.num_tables, blocks * slot
