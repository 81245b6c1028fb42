"""Equal slots: never worse than the engines compared, exact, and sound.

The oracle is slow and knows nothing of the search: plans of the engines by their own golden-tested
rules, and the block counts of every length, one after the other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
from layer_sets import LayerSet, layer_sets
from slots_golden import GOLDEN, golden, shape

from kvpipe.blocks import BlockManager
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import EngineRules
from kvpipe.errors import KvpipeError
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.cross import CrossAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.rhythm import rhythm
from kvpipe.specs.sink import SinkFullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.specs.sliding_mla import SlidingWindowMLASpec
from kvpipe.specs.streaming import StreamingSpec
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.hybrid import make_plan
from kvpipe.stages.grouping.planning import KVPIPE, VLLM_0_17, VLLM_0_33, plan
from kvpipe.stages.grouping.slots.capped import Caps, ways
from kvpipe.stages.grouping.slots.ceiling import Ceiling
from kvpipe.stages.grouping.slots.guard import Demand, Guard
from kvpipe.stages.grouping.slots.kinds import Blocks, Life, lives_of
from kvpipe.stages.grouping.slots.options import SlotOptions
from kvpipe.stages.grouping.slots.partition import cheapest
from kvpipe.stages.grouping.slots.search import Bounds, Search
from kvpipe.stages.grouping.slots.weights import Weights

EQUAL = replace(KVPIPE, groups="equal")
ENGINES = {"equal groups": EQUAL, "vllm_0_17": VLLM_0_17, "vllm_0_33": VLLM_0_33}
STEPS = (256, 2048, 8192)
MEMORY = 2**44


def full(values: Iterable[object]) -> list[object]:
    """Parameters for the full tier only."""
    return [pytest.param(value, marks=pytest.mark.full) for value in sorted(values, key=str)]


# Sets that equal slots plan otherwise than equal groups do, and that plan fast.
CHANGED = {
    "google/gemma-3-27b-it_text",
    "google/gemma-3-1b-pt",
    "gpt-oss-20b + EAGLE 4 (8x64)",
    "gemma-2-27b + gemma-2-2b",
    "Zyphra/Zamba2-2.7B",
    "preset lfm2",
    "meta-llama/Llama-3.1-8B",
}


# --- layers at random ----------------------------------------------------------------------------
def random_spec(rng: random.Random) -> KVCacheSpec:
    heads, head_size = rng.choice([1, 2, 4, 8, 16]), rng.choice([64, 80, 96, 128, 192, 256])
    own = {"block_size": 16, "num_kv_heads": heads, "head_size": head_size, "dtype": "bfloat16"}
    row = {"block_size": 16, "head_size": rng.choice([132, 576]), "dtype": "bfloat16"}
    window = rng.choice([16, 100, 128, 512])
    state = StateArray(name="ssm", shape=(rng.choice([64, 300, 1024]), 64), dtype="float32")
    return rng.choice(
        [
            FullAttentionSpec(**own),
            FullAttentionSpec(**own, dcp_sharded=False),
            SlidingWindowSpec(**own, sliding_window=window),
            SlidingWindowSpec(**own, sliding_window=window),
            ChunkedLocalAttentionSpec(**own, attention_chunk_size=rng.choice([128, 300])),
            SinkFullAttentionSpec(**own, sink_len=4),
            StreamingSpec(**own, sliding_window=window, num_sink_tokens=4),
            CrossAttentionSpec(**own),
            MLAAttentionSpec(**row),
            SlidingWindowMLASpec(**row, sliding_window=window),
            MambaSpec(
                block_size=rng.choice([256, 512]),
                states=(state,),
                num_speculative_blocks=rng.choice([0, 0, 2]),
            ),
        ]
    )


def random_layers(rng: random.Random) -> list[CacheLayer]:
    specs = [
        spec
        for _ in range(rng.randint(1, 4))
        for spec in [random_spec(rng)] * rng.choice([1, 1, 2, 3, 4, 10, 12, 26, 50])
    ]
    if rng.random() < 0.5:
        rng.shuffle(specs)
    return [CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(specs)]


def random_limits(rng: random.Random, longest: int) -> RequestLimits:
    return RequestLimits(
        max_model_len=longest,
        max_num_batched_tokens=rng.choice([64, 512, 2048]),
        max_encoder_tokens=rng.choice([0, 100]),
        num_lookahead_tokens=rng.choice([0, 0, 3]),
        mamba_cache_mode=rng.choice(["none", "align", "all"]),
    )


def staged(rng: random.Random, layers: list[CacheLayer]) -> list[list[CacheLayer]]:
    """One rank, two tensor-parallel ranks, or pipeline stages of uneven length."""
    if rng.random() < 0.5 or len(layers) < 4:
        return [layers] * rng.choice([1, 2])
    cut = rng.randint(1, len(layers) - 1)
    return [layers[:cut], layers[cut:]]


def planned(
    ranks: Sequence[Sequence[CacheLayer]], limits: RequestLimits, rules: EngineRules, **more: object
) -> Plan | None:
    try:
        return plan(ranks, limits, MEMORY, rules=rules, compared=(), **more)  # type: ignore[arg-type]
    except KvpipeError:
        return None


# --- what a request takes, by hand ----------------------------------------------------------------
def request_blocks(plan: Plan, limits: RequestLimits, length: int) -> tuple[int, ...]:
    """Steady, and at the peak of each step size."""
    specs = [group.spec for group in plan.groups]
    steady = sum(spec.steady_blocks(length, limits) for spec in specs)
    asked = limits.with_length(length)
    peaks = [
        sum(spec.peak_blocks(replace(asked, max_num_batched_tokens=step)) for spec in specs)
        for step in (limits.max_num_batched_tokens, *STEPS)
    ]
    return steady, *peaks


def worse_lengths(mine: Plan, other: Plan, limits: RequestLimits, lengths: range) -> list[int]:
    """Lengths at which a request takes more bytes under `mine`, on some rank."""
    found = []
    for n in lengths:
        ours, its = request_blocks(mine, limits, n), request_blocks(other, limits, n)
        for rank, base in zip(mine.ranks, other.ranks, strict=True):
            a, b = rank.config.bytes_per_block, base.config.bytes_per_block
            if any(x * a > y * b for x, y in zip(ours, its, strict=True)):
                found.append(n)
    return found


def check_promise(ranks: list[list[CacheLayer]], limits: RequestLimits, lengths: range) -> str:
    """What the plan promises is so at each of these lengths. Returns the rule that made it."""
    ours = planned(ranks, limits, KVPIPE)
    if ours is None or ours.slots is None:
        return "one group"
    facts = ours.slots
    for engine in facts.never_worse_than:
        base = planned(ranks, limits, ENGINES[engine])
        assert base is not None
        assert worse_lengths(ours, base, limits, lengths) == [], (engine, facts.rule)
        assert len(ours.groups) <= len(base.groups), (engine, facts.rule)
    compared = [engine for engine, _, _ in facts.compared]
    if facts.rule == "equal slots" and len(facts.never_worse_than) < len(compared):
        assert facts.never_worse_than == (compared[-1],), facts
    return facts.rule


@pytest.mark.parametrize("seed", range(12))
def test_no_request_takes_more_bytes_than_under_the_engines_compared(seed: int) -> None:
    rng = random.Random(seed)
    ranks, limits = staged(rng, random_layers(rng)), random_limits(rng, 1500)
    check_promise(ranks, limits, range(1, 1500, 31))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 400))
def test_no_request_takes_more_bytes_at_any_length(seed: int) -> None:
    rng = random.Random(seed)
    ranks, limits = staged(rng, random_layers(rng)), random_limits(rng, 2000)
    check_promise(ranks, limits, range(1, 2001))


def test_context_parallel_ranks_are_in_the_promise() -> None:
    full = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=128, dtype="bfloat16")
    draft = replace(full, num_kv_heads=2, dcp_sharded=False)
    layers = [CacheLayer(name=f"l.{i}", spec=s) for i, s in enumerate([full] * 20 + [draft] * 3)]
    limits = RequestLimits(max_model_len=3000, max_num_batched_tokens=512, dcp=2)
    assert check_promise([layers] * 2, limits, range(1, 3000, 29)) == "equal slots"


# --- the guard -----------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", [*range(10), *full(range(10, 200))])
def test_the_guard_finds_a_worse_length_exactly_where_there_is_one(seed: int) -> None:
    rng, longest = random.Random(seed), 900
    limits = random_limits(rng, longest)
    kinds = [random_spec(rng) for _ in range(rng.randint(1, 3))]

    def demand() -> Demand:
        specs = [
            kind if kind.is_state else kind.with_block_size(16 * rng.choice([1, 1, 2, 3, 5]))
            for kind in kinds
            for _ in range(rng.randint(1, 2))
        ]
        return Demand(specs=tuple(specs), slot_bytes=rng.choice([100, 101, 110, 150]))

    guard, mine, other = Guard(limits), demand(), demand()

    def worse(load: int, n: int) -> bool:
        blocks = guard.loads[load].blocks
        a = sum(blocks(spec, n) for spec in mine.specs) * mine.slot_bytes
        return a > sum(blocks(spec, n) for spec in other.specs) * other.slot_bytes

    really = any(worse(i, n) for i in range(len(guard.loads)) for n in range(1, longest + 1))
    assert (guard.worse(mine, other) is None) is not really


def worse_at(guard: Guard, mine: Demand, other: Demand) -> int | None:
    found = guard.worse(mine, other)
    return None if found is None else found.length


def test_the_guard_looks_at_the_last_period_where_the_longest_length_says_nothing() -> None:
    """Blocks of 48 tokens and 301 bytes against 16 and 100, and three states: worse by a byte more
    every 48 tokens, at the first token of a block, and never yet at the last."""
    full = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="bfloat16")
    state = StateArray(name="ssm", shape=(4, 4), dtype="float32")
    states = (MambaSpec(block_size=9999, states=(state,)),) * 3
    mine = Demand(specs=(full.with_block_size(48),), slot_bytes=301)
    other = Demand(specs=(full, *states), slot_bytes=100)

    def guard(longest: int) -> Guard:
        return Guard(RequestLimits(max_model_len=longest, max_num_batched_tokens=64))

    assert guard(48 * 99).worse(mine, other) is None
    assert worse_at(guard(48 * 120), mine, other) == 48 * 119 + 1


def test_a_spec_that_says_no_rhythm_is_never_promised_more_than_a_proof_needs() -> None:
    class Silent(SlidingWindowSpec):
        kind = "silent"

        def rhythm(self, limits: RequestLimits, in_flight: bool) -> None:  # type: ignore[override]
            return None

    own = {"num_kv_heads": 2, "head_size": 64, "dtype": "bfloat16", "sliding_window": 100}
    spec = Silent(block_size=16, **own)  # type: ignore[arg-type]
    guard = Guard(RequestLimits(max_model_len=500, max_num_batched_tokens=64))
    one = Demand(specs=(spec,), slot_bytes=100)
    assert worse_at(guard, Demand(specs=(spec.with_block_size(48),), slot_bytes=100), one) is None
    assert worse_at(guard, Demand(specs=(spec.with_block_size(48),), slot_bytes=99), one) is None
    assert worse_at(guard, Demand(specs=(spec.with_block_size(48),), slot_bytes=101), one) == 1
    finer = Demand(specs=(spec.with_block_size(24),), slot_bytes=1)
    assert worse_at(guard, finer, one) == 0  # surely smaller, but by no proof


def test_of_equal_starts_the_last_stretch_counts() -> None:
    made = rhythm((1, 4), (1, 8), (9, None))
    assert [(s.start, s.period) for s in made.stretches] == [(1, 8), (9, None)]
    assert made.period_at(8) == 8 and made.period_at(9) is None


# --- exact ----------------------------------------------------------------------------------------
def partitions(
    counts: tuple[int, ...], largest: tuple[int, ...]
) -> Iterator[list[tuple[int, ...]]]:
    """Every way to deal layers of each kind into tables, as descending lists of counts."""
    if not any(counts):
        yield []
        return
    for table in product(*(range(n, -1, -1) for n in counts)):
        if any(table) and table <= largest:
            rest = tuple(a - b for a, b in zip(counts, table, strict=True))
            yield from ([table, *more] for more in partitions(rest, table))


def by_hand(life: Life, slot: int, weights: Weights) -> dict[int, int]:
    """Number of tables -> the least weight of so many, over every partition and every block size:
    a window may hold fewer blocks of a smaller one."""
    counts = tuple(kind.count for kind in life.kinds)
    found: dict[int, int] = {}
    for tables in partitions(counts, counts):
        costs = [
            min(
                (
                    weights.weigh(life, t)
                    for t in life.sizes
                    if sum(n * k.page(t) for n, k in zip(table, life.kinds, strict=True)) <= slot
                ),
                default=None,
            )
            for table in tables
        ]
        if None not in costs:
            weight = sum(cost for cost in costs if cost is not None)
            found[len(tables)] = min(weight, found.get(len(tables), weight))
    return found


def small_life(rng: random.Random, most: int) -> tuple[Life, Weights]:
    kind = rng.choice([FullAttentionSpec, SlidingWindowSpec])
    own: dict[str, int] = {"sliding_window": 200} if kind is SlidingWindowSpec else {}
    specs = [
        kind(block_size=16, num_kv_heads=heads, head_size=64, dtype="bfloat16", **own)  # type: ignore[arg-type]
        for heads in rng.sample([1, 2, 3, 8], rng.choice([1, 1, 2]))
    ]
    counts = [rng.randint(1, most // len(specs)) for _ in specs]
    layers = {f"{i}.{n}": spec for i, spec in enumerate(specs) for n in range(counts[i])}
    (life,) = lives_of([layers], Blocks(largest=rng.choice([64, 128])))
    limits = RequestLimits(max_model_len=5000, max_num_batched_tokens=64)
    return life, Weights([life], limits, SlotOptions(table_price=rng.choice([0.0, 0.002, 0.05])))


def check_exact(seed: int, most: int) -> None:
    rng = random.Random(seed)
    life, weights = small_life(rng, most)
    widest = life.all_layers(life.sizes[0])
    slot = max(max(k.page(16) for k in life.kinds), rng.randrange(widest // 6, widest * 3 // 2))
    best = by_hand(life, slot, weights)
    found = cheapest(life, slot, 14, weights)
    for tables in range(1, 15):
        by_search = min((f.weight for n, f in found.items() if n <= tables), default=None)
        assert by_search == min((w for n, w in best.items() if n <= tables), default=None), tables
    for most_tables in (1, 2, 3):  # no fewer than may be
        few = cheapest(life, slot, most_tables, weights)
        by_search = min((f.weight for f in few.values()), default=None)
        assert by_search == min((w for n, w in best.items() if n <= most_tables), default=None)
    for number, tables in found.items():
        chunks = tables.deal()
        assert len(chunks) <= number
        assert sum(weights.weigh(life, chunk.tokens) for chunk in chunks) <= tables.weight
        dealt = [sum(chunk.counts[i] for chunk in chunks) for i in range(len(life.kinds))]
        assert dealt == [kind.count for kind in life.kinds]
        for chunk in chunks:
            pages = zip(chunk.counts, life.kinds, strict=True)
            assert sum(n * kind.page(chunk.tokens) for n, kind in pages) <= slot


@pytest.mark.parametrize("seed", range(12))
def test_the_tables_of_a_slot_are_the_cheapest_of_all_partitions(seed: int) -> None:
    check_exact(seed, 8)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(30, 80))
def test_the_tables_of_a_slot_are_the_cheapest_of_all_partitions_of_14_layers(seed: int) -> None:
    check_exact(seed, 14)


@pytest.mark.parametrize("seed", [*range(4), *full(range(4, 40))])
def test_no_slot_size_costs_less_than_the_one_that_is_found(seed: int) -> None:
    """Every size up to the widest table, in steps of the smallest difference of two tables."""
    rng = random.Random(seed)
    (life, _), (other, _) = small_life(rng, 4), small_life(rng, 4)
    if life.kinds[0].spec.type_key == other.kinds[0].spec.type_key:
        lives: tuple[Life, ...] = (life,)
    else:
        lives = (life, other)
    limits = RequestLimits(max_model_len=5000, max_num_batched_tokens=64)
    weights = Weights(lives, limits, SlotOptions())
    widest = max(each.all_layers(each.sizes[0]) for each in lives)
    bounds = Bounds(num_tables=20, slot_bytes=widest)
    first, *others = list(Search([lives], weights).plans(bounds))
    least = None
    for slot in range(4096, widest + 1, 4096):  # 16 tokens of one head of 64 numbers, K and V
        costs = [by_hand(each, slot, weights) for each in lives]
        if all(costs):
            best = sum(min(w * slot + n * weights.price for n, w in c.items()) for c in costs)
            least = best if least is None else min(least, best)
    assert first.cost == least
    assert all(a.cost <= b.cost for a, b in pairwise([first, *others]))


# --- the recorded sets ---------------------------------------------------------------------------
def plan_of(layer_set: LayerSet, rules: EngineRules, **options: object) -> Plan:
    return make_plan(
        GroupingRequest(
            ranks=(layer_set.layers,),
            limits=layer_set.limits(),
            memory=(MEMORY,),
            rules=rules,
            slots=SlotOptions(**options),  # type: ignore[arg-type]
            block_quantum=layer_set.block_quantum,
        )
    )


@pytest.mark.parametrize("name", [*sorted(CHANGED), *full(sorted(GOLDEN.keys() - CHANGED))])
def test_a_recorded_set_is_planned_as_recorded_and_no_worse_than_before(name: str) -> None:
    layer_set = layer_sets()[name]
    ours, before = plan_of(layer_set, KVPIPE), plan_of(layer_set, EQUAL)
    assert shape(ours) == golden()[name]
    width = ours.ranks[0].config.bytes_per_block
    assert all(page.offset % 16 == 0 for t in ours.ranks[0].config.tensors for page in t.pages)
    for group in ours.groups:
        used = sum(group.layer_spec(layer).page_size_bytes for layer in group.layer_names)
        assert used <= width
    if ours.slots is None:
        assert ours.ranks == before.ranks  # one kind of layer: as it always was
        return
    lengths = range(1, layer_set.max_model_len, max(1, layer_set.max_model_len // 50))
    assert worse_lengths(ours, before, layer_set.limits(), lengths) == []
    assert len(ours.groups) <= len(before.groups)


def test_the_default_engine_serves_gpt_oss_with_four_draft_layers_as_the_newest_vllm() -> None:
    layer_set = layer_sets()["gpt-oss-20b + EAGLE 4 (8x64)"]
    slots, equal = plan_of(layer_set, KVPIPE), plan_of(layer_set, EQUAL)
    assert slots.capacity is not None and equal.capacity is not None
    assert equal.capacity.steady_bytes / slots.capacity.steady_bytes > 1.49


def test_fewest_tables_gives_up_a_few_bytes_for_fewer_tables() -> None:
    layer_set = layer_sets()["gpt-oss-120b + EAGLE 1 (8x128)"]
    never, fewest = (
        plan_of(layer_set, KVPIPE, objective=objective)
        for objective in ("never_worse", "fewest_tables")
    )
    assert len(plan_of(layer_set, VLLM_0_33).groups) == 37
    assert len(fewest.groups) <= 4 < len(never.groups) <= 10
    assert never.capacity is not None and fewest.capacity is not None
    assert fewest.capacity.steady_bytes < 1.01 * never.capacity.steady_bytes


# --- what users say -------------------------------------------------------------------------------
def test_prefixes_are_shared_in_steps_that_the_grain_bounds() -> None:
    layer_set = layer_sets()["google/gemma-3-27b-it_text"]
    for most in (16, 32, 128):
        made = plan_of(layer_set, KVPIPE, max_prefix_grain=most)
        assert made.slots is not None and 16 <= made.slots.prefix_grain <= most
    limits = RequestLimits(max_model_len=4096, max_num_batched_tokens=512)
    made = plan(layer_set.layers, limits, 2**32, compared=())
    assert made.slots is not None and made.slots.prefix_grain > 16
    manager = BlockManager.from_plan(made, prefix_caching=True)
    prompt = list(range(1000))
    manager.add_request("a", prompt)
    manager.begin_step()
    manager.allocate("a", 512)
    manager.begin_step()
    manager.allocate("a", 488)
    manager.begin_step()
    assert (
        manager.add_request("b", prompt)
        == 1000 // made.slots.prefix_grain * made.slots.prefix_grain
    )


def test_block_sizes_are_powers_of_two_where_asked() -> None:
    made = plan_of(layer_sets()["gemma-3-27b + gemma-3-1b"], KVPIPE, block_sizes="powers_of_two")
    sizes = {group.spec.block_size for group in made.groups}
    assert len(sizes) > 1 and all(size & (size - 1) == 0 for size in sizes)


def test_kernels_of_some_block_sizes_get_only_those() -> None:
    layer_set = layer_sets()["gemma-3-27b + gemma-3-1b"]
    request = GroupingRequest(
        ranks=(layer_set.layers,),
        limits=layer_set.limits(),
        memory=(MEMORY,),
        rules=KVPIPE,
        kernel_sizes=(16, 64),
    )
    whole = replace(KVPIPE, splits_apart_pages=False)
    sizes = {g.spec.block_size for g in make_plan(replace(request, rules=whole)).groups}
    assert sizes == {16, 64}
    split = make_plan(request)
    slot = split.ranks[0].config.bytes_per_block
    for spec in {group.layer_spec(n) for group in split.groups for n in group.layer_names}:
        assert spec.block_size in (16, 64) or not slot % spec.with_block_size(16).page_size_bytes


def test_a_placement_that_puts_layers_outermost_keeps_equal_groups() -> None:
    layer_set = layer_sets()["google/gemma-3-27b-it_text"]
    made = plan(layer_set.layers, layer_set.limits(), MEMORY, kv_cache_layout="LBNHC", compared=())
    assert made.slots is None and len(made.ranks[0].config.tensors) == 10


@pytest.mark.parametrize("quarters", range(26, 60, 3))
def test_no_fewer_requests_fit_into_a_little_memory(quarters: int) -> None:
    """A larger slot leaves more of the pool unused: then the plan is another."""
    layer_set = layer_sets()["two models: gemma-3-27b + Llama-3.1-8B"]
    limits = layer_set.limits(batch=512, length=2048)
    memory = quarters * 2**26

    def held(rules: EngineRules) -> tuple[int, ...]:
        try:
            found = plan(layer_set.layers, limits, memory, rules=rules, compared=()).capacity
        except KvpipeError:
            return (0, 0)
        assert found is not None
        return (found.requests_at_peak, found.requests_steady)

    for engine in (EQUAL, VLLM_0_33):
        assert all(a >= b for a, b in zip(held(KVPIPE), held(engine), strict=True))


@pytest.mark.parametrize("memory", [149_874_278, 154_156_400, 295_466_434])
def test_where_a_larger_slot_would_hold_a_request_less_the_plan_is_another(memory: int) -> None:
    """Here the plan that is best by its bytes alone leaves so much of the pool unused."""
    layer_set = layer_sets()["Bamba-9B + TinyLlama"]
    limits = layer_set.limits(batch=512, length=2048)
    ours, its = (
        plan(layer_set.layers, limits, memory, rules=rules, compared=()).capacity
        for rules in (KVPIPE, VLLM_0_33)
    )
    assert ours is not None and its is not None
    assert ours.requests_at_peak >= its.requests_at_peak >= 1
    assert ours.requests_steady >= its.requests_steady


def test_a_plan_that_costs_a_little_more_is_found_where_the_cheapest_are_worse_at_some_length() -> (
    None
):
    """49 tables of one layer each by vLLM's rules; the cheapest plans take more at 513 tokens."""
    layer_set = layer_sets()["Qwen3-Next-80B + DFlash 1 full (8x128)"]
    made = plan_of(layer_set, KVPIPE)
    assert len(plan_of(layer_set, VLLM_0_33).groups) == 49
    assert len(made.groups) == 22
    assert made.slots is not None and len(made.slots.never_worse_than) == 3


@pytest.mark.parametrize("seed", [*range(6), *full(range(6, 60))])
def test_under_caps_the_cheapest_of_all_partitions_that_keep_them_is_found(seed: int) -> None:
    """Every partition and every block size, one after the other."""
    rng = random.Random(seed)
    life, weights = small_life(rng, 5)
    widest = life.all_layers(life.sizes[0])
    slot = max(max(k.page(16) for k in life.kinds), rng.randrange(widest // 4, widest * 3 // 2))
    loads = Guard(weights.limits).loads
    counts = tuple(kind.count for kind in life.kinds)
    lengths = rng.sample([17, 129, 513, 1025, 4999], 2)
    most = [rng.randint(2, 3 * (n // 64 + 2)) for n in lengths]
    ceilings = [Ceiling(loads[0], n, room * slot) for n, room in zip(lengths, most, strict=True)]

    def kept(tables: list[int]) -> bool:
        sums = [sum(c.weigh(life, t) for t in tables) for c in ceilings]
        return all(a <= b for a, b in zip(sums, most, strict=True)) and len(tables) <= 6

    best = min(
        (
            sum(weights.weigh(life, t) * slot + weights.price for t in tables)
            for parts in partitions(counts, counts)
            for tables in product(*(sizes_of(life, part, slot) for part in parts))
            if kept(list(tables))
        ),
        default=None,
    )
    found = ways([life], Caps(slot=slot, cost=None, tables=6, ceilings=ceilings), weights)
    assert (found[0].taken[0] if found else None) == best


def sizes_of(life: Life, part: tuple[int, ...], slot: int) -> list[int]:
    pages = list(zip(part, life.kinds, strict=True))
    return [t for t in life.sizes if sum(n * kind.page(t) for n, kind in pages) <= slot]


def test_kinds_that_share_a_life_have_a_block_size_that_all_of_them_may_have() -> None:
    """Each two of these share a size, and no size is open to all three."""
    one = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype="bfloat16")
    specs = [replace(one, num_kv_heads=heads) for heads in (1, 2, 3)]
    may = dict(zip(specs, ((16, 32), (32, 48), (16, 48)), strict=True))

    class Open:
        def of(self, spec: KVCacheSpec) -> dict[int, KVCacheSpec]:
            return {tokens: replace(spec, block_size=tokens) for tokens in may[spec]}

    layers = {f"layers.{i}": spec for i, spec in enumerate(specs)}
    lives = lives_of([layers], Open())  # type: ignore[arg-type]
    assert len(lives) == 2 and all(life.sizes for life in lives)
