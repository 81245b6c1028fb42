"""`grouping.for_engine=vllm`: slots whose pages are of one size, which vLLM's workers take."""

from __future__ import annotations

import random
from itertools import product

import pytest
from layer_sets import layer_sets
from test_slots import plan_of, planned, random_layers, random_limits, staged, worse_lengths

import kvpipe
from kvpipe.cache.plan import Plan
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.grouping.planning import KVPIPE, VLLM_0_33
from kvpipe.stages.grouping.slots.options import SlotOptions

# Sets of which vLLM takes a better plan than its own; of the last it takes none.
BETTER = [
    "gemma-3-4b + gemma-3-1b",
    "two models: gemma-3-27b + Llama-3.1-8B",
    "two models: gpt-oss-20b + Qwen3-0.6B",
    "Qwen3-Next-80B + Qwen3-0.6B",
]


def pages(plan: Plan) -> set[int]:
    return {g.layer_spec(n).page_size_bytes for g in plan.groups for n in g.layer_names}


def check_tensors(plan: Plan) -> None:
    """As a worker lays them out: an array of pages for each place, one layer of a group in each."""
    config = plan.ranks[0].config
    (page,) = pages(plan)
    assert len(config.tensors) == max(len(group.layer_names) for group in plan.groups)
    held = []
    for tensor in config.tensors:
        assert tensor.size_bytes == page * config.num_blocks
        assert all(p.offset == 0 and p.block_stride == page for p in tensor.pages)
        own = [sum(n in g.layer_names for n in tensor.shared_by) for g in plan.groups]
        assert max(own) == 1
        held += tensor.shared_by
    assert sorted(held) == sorted(n for g in plan.groups for n in g.layer_names)


@pytest.mark.parametrize(
    "name", [*BETTER[:1], *(pytest.param(n, marks=pytest.mark.full) for n in BETTER[1:])]
)
def test_vllm_is_given_pages_of_one_size_and_fewer_bytes_than_by_its_own_groups(name: str) -> None:
    layer_set = layer_sets()[name]
    ours = plan_of(layer_set, KVPIPE, for_engine="vllm")
    own = plan_of(layer_set, VLLM_0_33)
    check_tensors(ours)
    assert ours.slots and ours.slots.never_worse_than == ("equal groups", "vllm_0_17", "vllm_0_33")
    assert len(ours.groups) <= len(own.groups)
    limits = ours.limits
    some = range(1, limits.max_model_len, max(1, limits.max_model_len // 150))
    assert worse_lengths(ours, own, limits, some) == []
    assert ours.capacity and own.capacity
    assert ours.capacity.steady_bytes < 0.95 * own.capacity.steady_bytes


def test_the_plan_says_what_the_pages_that_vllm_cannot_take_would_have_saved() -> None:
    layer_set = layer_sets()["two models: gemma-3-27b + Llama-3.1-8B"]
    ours, best = plan_of(layer_set, KVPIPE, for_engine="vllm"), plan_of(layer_set, KVPIPE)
    assert ours.slots and best.capacity and ours.capacity
    name, tables, held = ours.slots.compared[-1]
    assert name == "equal slots of unlike pages"
    assert (tables, held) == (len(best.groups), best.capacity.steady_bytes)
    assert held < ours.capacity.steady_bytes and len(pages(best)) > 1


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.full) for n in range(6, 120))]
)
def test_of_random_layers_vllm_gets_one_page_and_what_is_promised(seed: int) -> None:
    rng = random.Random(seed)
    ranks, limits = staged(rng, random_layers(rng)), random_limits(rng, 1500)
    ours = planned(ranks, limits, KVPIPE, slots=SlotOptions(for_engine="vllm"))
    if ours is None or ours.slots is None:
        return
    own_groups = ours.slots.rule == "vllm_0_33's own groups"
    assert own_groups or len(pages(ours)) == 1
    if "vllm_0_33" in ours.slots.never_worse_than:
        base = planned(ranks, limits, VLLM_0_33)
        assert base is not None
        assert worse_lengths(ours, base, limits, range(1, 1500, 29)) == []


@pytest.mark.parametrize(
    ("counts", "heads"),
    [((11, 29), (3, 2)), ((4, 36), (2, 1)), ((7, 10), (1, 4)), ((3, 40), (5, 2))],
)
@pytest.mark.parametrize(("price", "length"), [(0.0, 4096), (0.002, 4096), (0.03, 700)])
def test_the_cheapest_equal_pages_are_found_by_trying_all_of_them(
    counts: tuple[int, int], heads: tuple[int, int], price: float, length: int
) -> None:
    """Every page that both kinds can have, and every number of pages a slot; a kind's layers take
    as few tables as there must be."""
    row = {"block_size": 16, "head_size": 8, "dtype": "float16"}
    kinds = (
        FullAttentionSpec(**row, num_kv_heads=heads[0]),
        SlidingWindowSpec(**row, num_kv_heads=heads[1], sliding_window=200),
    )
    layers = [
        CacheLayer(name=f"{kind}.{i}", spec=spec)
        for kind, (count, spec) in enumerate(zip(counts, kinds, strict=True))
        for i in range(count)
    ]
    limits = RequestLimits(max_model_len=length, max_num_batched_tokens=256)
    options = SlotOptions(
        for_engine="vllm", objective="fewest_tables", table_price=price, lengths=(length,)
    )
    made = planned([layers], limits, KVPIPE, slots=options, prefix_caching=False)
    fewest = sum(
        n * spec.steady_blocks(length, limits) * spec.page_size_bytes
        for n, spec in zip(counts, kinds, strict=True)
    )
    costs = []
    for sizes in product(range(16, 32 * 16 + 1, 16), repeat=2):
        blocks = [spec.with_block_size(t) for spec, t in zip(kinds, sizes, strict=True)]
        if len({spec.page_size_bytes for spec in blocks}) > 1:
            continue
        for m in range(1, max(counts) + 1):
            tables = [-(-n // m) for n in counts]
            held = [
                n * s.steady_blocks(length, limits) for n, s in zip(tables, blocks, strict=True)
            ]
            costs.append(m * blocks[0].page_size_bytes * sum(held) + price * fewest * sum(tables))
    assert made is not None and made.capacity is not None
    ours = made.capacity.steady_bytes + price * fewest * len(made.groups)
    assert ours == pytest.approx(min(costs), rel=1e-9)


@pytest.mark.parametrize("length", [150, 400, 700, 1000])
def test_beside_states_the_page_is_the_cheapest_of_those_that_hold_one(length: int) -> None:
    full = FullAttentionSpec(block_size=16, num_kv_heads=3, head_size=8, dtype="float16")
    part = StateArray(name="ssm", shape=(5000,), dtype="uint8")
    state = MambaSpec(block_size=1024, states=(part,))
    layers = [CacheLayer(name=f"f{i}", spec=full) for i in range(9)]
    layers += [CacheLayer(name=f"s{i}", spec=state) for i in range(4)]
    limits = RequestLimits(max_model_len=length, max_num_batched_tokens=256)
    options = SlotOptions(
        for_engine="vllm", objective="fewest_tables", table_price=0.0, lengths=(length,)
    )
    made = planned([layers], limits, KVPIPE, slots=options, prefix_caching=False)
    costs = [
        m * page * (-(-9 // m) * -(-length // tokens) + -(-4 // m))
        for tokens in range(16, 32 * 16 + 1, 16)
        for m in range(1, 10)
        if (page := full.with_block_size(tokens).page_size_bytes) >= 5000
    ]
    assert made is not None and made.capacity is not None
    assert made.capacity.steady_bytes == min(costs)


@pytest.mark.full
def test_a_run_for_vllm_proves_itself() -> None:
    asked = [
        "model=gemma3_27b", "device=cpu", "cache.kv_cache_memory_bytes=1600MiB",
        "scheduler.max_model_len=4096", "scheduler.max_num_batched_tokens=512",
        "grouping.for_engine=vllm", "backend=torch",
    ]  # fmt: skip
    result = kvpipe.run(asked)
    assert len(pages(result.plan)) == 1
    assert result.plan.slots and "vllm_0_33" in result.plan.slots.never_worse_than
    report = result.bound[0].verify
    assert report.rows and not report.mismatches
