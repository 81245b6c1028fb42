"""Scratch: a window stores of a prefill chunk what survives it; nothing that is read is lost."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from block_models import chunked, full, sliding, streaming
from layer_sets import layer_sets
from scratch_walk import Arena, arena_of

import kvpipe
from kvpipe.backends.host import HostBackend
from kvpipe.backends.torch_ import TorchBackend
from kvpipe.blocks import BlockError, BlockManager, OutOfBlocks
from kvpipe.cache.plan import Plan
from kvpipe.embed import Pool
from kvpipe.engines.base import EngineRules
from kvpipe.engines.kvpipe import PLUGIN as KVPIPE
from kvpipe.engines.vllm_0_17 import PLUGIN as VLLM_0_17
from kvpipe.engines.vllm_0_33 import PLUGIN as VLLM_0_33
from kvpipe.errors import ConfigError
from kvpipe.integrations import own_module
from kvpipe.request.confdir import shipped_option
from kvpipe.simulation import read_trace, replay
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.allocation.base import AllocationRequest
from kvpipe.stages.allocation.buffers import Buffers
from kvpipe.stages.binding.base import AttentionLayer, VerifyReport
from kvpipe.stages.binding.context import VerifyOptions, bind_layer, verify
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.planning import plan
from kvpipe.stages.grouping.scratch import stepped, uses_scratch
from kvpipe.stages.grouping.slots.options import SlotOptions

# (spec, layers, units a page) of each group; units of a slot. Slots are filled, or padded.
ARENAS: dict[str, tuple[list[tuple[KVCacheSpec, int, int]], int]] = {
    "one window": ([(sliding(4, 6), 3, 1)], 3),
    "a window beside full": ([(full(4), 2, 2), (sliding(4, 9), 4, 1)], 4),
    "two windows, unlike blocks": (
        [(sliding(2, 1), 3, 2), (full(4), 1, 6), (sliding(3, 9), 2, 3)],
        6,
    ),
    "a padded slot": ([(sliding(4, 5), 2, 3), (sliding(6, 13), 1, 7)], 8),
    "chunks": ([(chunked(4, 8), 2, 2), (full(4), 2, 2)], 4),
    "chunks across blocks": ([(chunked(3, 7), 3, 1), (full(3), 1, 2)], 3),
    "sinks": ([(streaming(3, 4, 5), 2, 1), (sliding(4, 4), 2, 1)], 2),
}


def manager_of(name: str, blocks: int, batch: int, spare: bool = True, ahead: int = 0) -> Arena:
    groups, slot = ARENAS[name]
    limits = RequestLimits(
        max_model_len=90, max_num_batched_tokens=batch, num_lookahead_tokens=ahead
    )
    config = arena_of(groups, blocks, slot, spare)
    return Arena(BlockManager(config, limits, max_num_requests=8), limits)


@pytest.mark.parametrize("name", ARENAS)
@pytest.mark.parametrize("batch", [1, 5, 12, 40])
def test_no_position_that_a_query_reads_is_lost_or_overwritten(name: str, batch: int) -> None:
    arena = manager_of(name, 400, batch)
    arena.add("a", 60)
    arena.add("b", 33)
    random = Random(batch)
    while prompts := [n for n, r in arena.live.items() if r.stored < len(r.tokens)]:
        left, chunks = batch, {}
        for request in random.sample(prompts, len(prompts)):
            served = arena.live[request]
            new = min(left, random.randint(1, batch), len(served.tokens) - served.stored)
            if new:
                chunks[request] = new
                left -= new
        decoded = [n for n in arena.live if n not in prompts][: max(0, left)]
        arena.step(chunks, decoded)
    for _ in range(9):
        arena.step({}, ["a", "b"][:batch])
    assert arena.queries > 500
    for request in list(arena.live):
        arena.free(request)
    assert arena.manager.pool.num_free == 399, "a slot was lost"


@pytest.mark.parametrize("name", ARENAS)
def test_drafts_forks_and_ends_find_what_a_scratched_chunk_left(name: str) -> None:
    arena = manager_of(name, 400, 20, ahead=3)
    arena.add("a", 50)
    arena.add("b", 25)
    arena.step({"a": 20}, [])
    arena.step({"a": 11, "b": 9}, [])
    arena.step({"a": 19, "b": 1}, [])
    for accepted in (0, 3, 1, 2):
        arena.step({"b": 2}, ["a"], drafts=3)
        arena.accept("a", accepted)
    arena.fork("a", ("c", "a"))
    arena.step({"b": 7}, ["a", ("c", "a")])
    for _ in range(5):
        arena.step({}, [("c", "a"), "a", "b"][: 3 if arena.live["b"].stored >= 25 else 2])
    arena.free("a")
    arena.add("d", 40)
    arena.step({"d": 20}, [("c", "a")])
    arena.step({"d": 20}, [("c", "a")])
    for name_ in list(arena.live):
        arena.free(name_)
    assert arena.manager.pool.num_free == 399


@pytest.mark.parametrize("name", ARENAS)
def test_a_fork_in_the_middle_of_a_prompt_keeps_its_window(name: str) -> None:
    """Neither of the two may push out a block that the other still reads."""
    arena = manager_of(name, 400, 20)
    arena.add("a", 70)
    arena.step({"a": 19}, [])
    arena.fork("a", ("c", "a"))
    arena.step({"a": 20}, [])
    arena.step({("c", "a"): 3}, [])
    arena.step({("c", "a"): 17, "a": 3}, [])
    for request in list(arena.live):
        arena.free(request)
    assert arena.manager.pool.num_free == 399


def test_a_request_that_ends_before_its_step_has_run_leaves_nothing_to_do() -> None:
    """Its blocks may be another's by then."""
    groups, slot = ARENAS["one window"]
    limits = RequestLimits(max_model_len=90, max_num_batched_tokens=40)
    manager = BlockManager(arena_of(groups, 12, slot), limits)
    manager.add_request("a")
    for new in (9, 9):
        manager.begin_step()
        manager.allocate("a", new)
    assert len(manager.scratch.moves(0)[0]) and manager.scratch.used_by(0)
    manager.free("a")
    manager.add_request("b")
    manager.allocate("b", 40)
    assert not len(manager.scratch.moves(0)[0])
    manager.free("b")
    manager.end_step()
    assert manager.pool.stats().in_use == 0


def any_sequence(name: str, seed: int, steps: int) -> Arena:
    """Prompts in chunks, decoding, drafts, forks, swaps, ends, in a pool that runs dry."""
    random = Random(seed)
    ahead = random.choice((0, 0, 3))
    arena = manager_of(name, random.choice((26, 45, 90)), random.choice((4, 13, 40)), ahead=ahead)
    budget, number = arena.limits.max_num_batched_tokens, 0
    for _ in range(steps):
        what = random.random()
        if what < 0.2 and len(arena.live) < 6:
            arena.add(number, random.randint(1, 80))
            number += 1
        elif what < 0.27 and arena.live and len(arena.live) < 6:
            parent = random.choice(list(arena.live))
            arena.fork(parent, (number, parent))
            number += 1
        elif what < 0.36 and arena.live:
            arena.free(random.choice(list(arena.live)))
        elif what < 0.4 and arena.live:
            arena.swap(random.choice(list(arena.live)))
        else:
            left, chunks, decoded = budget, {}, []
            drafts = random.randint(0, ahead) if budget > ahead else 0
            for request in random.sample(list(arena.live), len(arena.live)):
                served = arena.live[request]
                if missing := len(served.tokens) - served.stored:
                    new = min(left, missing, random.choice((budget, random.randint(1, budget))))
                    chunks |= {request: new} if new > 0 else {}
                elif left > drafts and served.stored < arena.limits.max_model_len - 4:
                    new = 1 + drafts
                    decoded.append(request)
                else:
                    continue
                left -= new
            arena.step(chunks, decoded, drafts)
            for request in decoded if drafts and arena.manager.live_requests else ():
                if arena.last_decoded:
                    arena.accept(request, random.randint(0, drafts))
    for request in list(arena.live):
        arena.free(request)
    assert arena.manager.pool.stats().in_use == 0, "a slot was lost"
    return arena


@pytest.mark.parametrize("name", ARENAS)
def test_any_sequence_keeps_what_is_read(name: str) -> None:
    arenas = [any_sequence(name, seed, 40) for seed in range(4)]
    assert sum(arena.queries for arena in arenas) > 1000


@pytest.mark.full
@pytest.mark.parametrize("name", ARENAS)
def test_any_of_20_long_sequences_keeps_what_is_read(name: str) -> None:
    arenas = [any_sequence(name, seed, 120) for seed in range(100, 120)]
    assert name == "one window" or sum(arena.refused for arena in arenas) > 10


@pytest.mark.parametrize("name", ARENAS)
def test_a_step_with_scratch_never_holds_more_than_one_without(name: str) -> None:
    for batch in (1, 3, 7, 30):
        held = []
        for spare in (False, True):
            arena = manager_of(name, 400, batch, spare)
            arena.add("a", 60)
            trail = []
            while arena.live["a"].stored < 60:
                arena.step({"a": min(batch, 60 - arena.live["a"].stored)}, [])
                trail.append(arena.most_held)
            held.append(trail)
        plain, spared = held
        assert all(b <= a for a, b in zip(plain, spared, strict=True)), (batch, plain, spared)


def test_a_grant_that_runs_short_of_scratch_changes_nothing() -> None:
    groups, slot = ARENAS["a window beside full"]
    limits = RequestLimits(max_model_len=90, max_num_batched_tokens=40)
    for blocks in range(2, 24):
        manager = BlockManager(arena_of(groups, blocks, slot), limits)
        manager.add_request("a")
        manager.begin_step()
        try:
            manager.allocate("a", 40)
        except OutOfBlocks as error:
            assert error.short_by > 0 and manager.pool.num_free == blocks - 1
            assert manager.scratch.slots == [] and not manager.num_tokens("a")
        else:
            # 10 of full, 2 of the window, and ceil(8 blocks / 4 pages a slot) of scratch.
            assert blocks - 1 >= 10 + 2 + 2
            return
        assert blocks - 1 < 10 + 2 + 2
    pytest.fail("never fitted")


@pytest.mark.parametrize("name", ARENAS)
@pytest.mark.parametrize("ahead", [0, 3])
def test_no_step_of_a_request_holds_more_than_is_planned(name: str, ahead: int) -> None:
    """Any chunks, then decoding to the end."""
    groups, slot = ARENAS[name]
    config = arena_of(groups, 400, slot)
    for batch in (5, 17, 40):
        limits = RequestLimits(
            max_model_len=90, max_num_batched_tokens=batch, num_lookahead_tokens=ahead
        )
        planned = stepped([spec for spec, *_ in groups], config.scratch, limits)
        manager, random = BlockManager(config, limits), Random(batch)
        for _ in range(12):
            manager.add_request("a")
            while (stored := manager.num_tokens("a")) < 90 - ahead:
                manager.begin_step()
                if stored < 70:
                    new = random.choice((batch, random.randint(1, batch)))
                    manager.allocate("a", min(70 - stored, new))
                else:
                    manager.append(["a"], None, ahead)
                assert manager.pool.stats().in_use <= planned.total, (batch, stored, planned)
            manager.free("a")


# --- the plan -------------------------------------------------------------------------------------
LIMITS = {"max_model_len": 32_768, "max_num_batched_tokens": 8192}


def gemma(**options: Any) -> Plan:
    layers = layer_sets()["google/gemma-3-27b-it_text"].layers
    limits = RequestLimits(**{**LIMITS, **options.pop("limits", {})})
    options = {"prefix_caching": False, "compared": (), **options}
    return plan(layers, limits, 14 << 30, **options)


def payload(made: Plan) -> int:
    """Bytes of the tokens that a decoding request of the longest length must keep."""
    total = 0
    for group in made.groups:
        for layer in group.layer_names:
            each = group.layer_spec(layer).with_block_size(1)
            total += (
                each.steady_blocks(made.limits.max_model_len, made.limits) * each.page_size_bytes
            )
    return total


@pytest.mark.parametrize(
    ("batch", "expected", "running"),
    [(2048, [1.347, 1.282, 1.008], (4, 4)), (8192, [2.315, 2.121, 1.024], (3, 4))],
)
def test_gemma_3_27b_reads_its_prompt_in_a_hundredth_more_than_its_payload(
    batch: int, expected: list[float], running: tuple[int, int]
) -> None:
    """32k: the figures of docs/slots.md; under vLLM, in equal slots, with scratch."""
    limits = {"max_num_batched_tokens": batch}
    plain, spared = gemma(limits=limits), gemma(scratch=True, limits=limits)
    vllm = gemma(rules=VLLM_0_33, limits=limits)
    over = [made.capacity.peak_bytes / payload(made) for made in (vllm, plain, spared)]
    assert over == pytest.approx(expected, abs=0.002)
    assert spared.groups == plain.groups
    assert spared.capacity.steady_bytes == plain.capacity.steady_bytes
    assert (plain.capacity.requests_running, spared.capacity.requests_running) == running
    blocks = spared.capacity.peak_bytes // spared.ranks[0].config.bytes_per_block
    assert spared.printed[0].max_concurrency == spared.capacity.usable_blocks / blocks
    assert spared.ranks[0].required_bytes == spared.capacity.peak_bytes


def test_pages_of_scratch_are_where_the_plan_lays_pages() -> None:
    made = gemma(scratch=True)
    config = made.ranks[0].config
    (tensor,) = config.tensors
    offsets = {page.layer: page.offset for page in tensor.pages}
    for group, scratch in zip(config.groups, config.scratch, strict=True):
        if scratch is None:
            assert not group.spec.frees_tokens
            continue
        assert scratch.slot_units * scratch.unit_bytes == config.bytes_per_block
        page = group.spec.page_size_bytes
        assert scratch.pitch_units * scratch.unit_bytes == page
        assert scratch.pages_per_slot == config.bytes_per_block // page
        for layer in group.layer_names:
            assert scratch.shift(layer) * scratch.unit_bytes == offsets[layer]


def test_nobody_s_plan_changes_who_did_not_ask() -> None:
    for name in ("google/gemma-3-27b-it_text", "openai/gpt-oss-20b"):
        layer_set = layer_sets()[name]
        limits = layer_set.limits(2048, 8192)
        for rules in (VLLM_0_17, VLLM_0_33):
            asked = plan(layer_set.layers, limits, 8 << 30, rules=rules, scratch=True, compared=())
            assert asked == plan(layer_set.layers, limits, 8 << 30, rules=rules, compared=())
            assert not any(asked.ranks[0].config.scratch)
        assert plan(layer_set.layers, limits, 8 << 30).ranks[0].config.scratch == ()


def test_layers_whose_cache_others_read_keep_their_chunks() -> None:
    """The layers in between would fill the scratch with their own, before it is read again."""
    window, whole = sliding(16, 64), full(16)
    layers = [
        *(CacheLayer(name=f"layers.{i}", spec=window) for i in range(4)),
        CacheLayer(name="layers.4", spec=whole),
    ]
    limits = RequestLimits(max_model_len=4096, max_num_batched_tokens=1024)
    made = plan(layers, limits, 8 << 20, prefix_caching=False, scratch=True)
    assert any(made.ranks[0].config.scratch)
    readers = [
        CacheLayer(name=f"layers.{5 + i}", spec=window, shares_with=f"layers.{i}") for i in range(4)
    ]
    assert not any(
        plan([*layers, *readers], limits, 8 << 20, prefix_caching=False, scratch=True)
        .ranks[0]
        .config.scratch
    )


# --- what runs with it ----------------------------------------------------------------------------
def test_a_replay_with_scratch_runs_no_fewer_requests_and_ends_no_later() -> None:
    window, whole = sliding(16, 256), full(16)
    layers = [
        CacheLayer(name=f"layers.{i}", spec=whole if i % 6 == 5 else window) for i in range(12)
    ]
    limits = RequestLimits(max_model_len=8192, max_num_batched_tokens=2048)
    trace = read_trace(shipped_option("trace", "azure_code_sample") | {"arrivals": "at_once"})
    requests = trace.requests()[:40]
    without, spared = (
        replay(
            requests,
            plan(layers, limits, 600 << 10, prefix_caching=False, scratch=scratch),
            trace.options,
        )
        for scratch in (False, True)
    )
    assert without.counts.finished == spared.counts.finished == 40
    assert without.usable_blocks == spared.usable_blocks
    assert spared.max_running > without.max_running and spared.simulated_s < without.simulated_s
    assert spared.pool.in_use == without.pool.in_use == 0
    assert spared.largest_gap is not None and spared.largest_gap.shared == 0


def command(*overrides: str) -> Any:
    small = ["model=gemma3_27b", "device=cpu", "cache.kv_cache_memory_bytes=1200MiB"]
    small += ["scheduler.max_model_len=2048", "scheduler.max_num_batched_tokens=1024"]
    return kvpipe.run([*small, "cache.enable_prefix_caching=false", *overrides])


def proven(layers: list[CacheLayer], backend: str) -> tuple[Plan, VerifyReport]:
    """The self-proof over memory that is really allocated, which it leaves as it found it."""
    limits = RequestLimits(max_model_len=400, max_num_batched_tokens=120)
    few = SlotOptions(objective="fewest_tables", table_price=0.2)
    made = plan(layers, limits, 1 << 20, prefix_caching=False, scratch=True, slots=few)
    config = made.ranks[0].config
    where = address_map(config, made.shared_layers)
    owner = {"host": HostBackend, "torch": TorchBackend}[backend]()
    options = Buffers.Options(name="buffers", init="poison")
    buffers = Buffers(options).run(AllocationRequest(config=config, addresses=where), owner)
    bound = {layer.name: AttentionLayer(name=layer.name) for layer in layers}
    for name in bound:
        bind_layer(bound, name, buffers)
    asked = VerifyOptions(**shipped_option("binding", "context")["verify"] | {"enabled": True})
    report = verify(bound, config, buffers, made.limits, asked)
    assert all(bool((buffer.data == buffers.init_byte).all()) for buffer in buffers.buffers)
    return made, report


def layers_of(*kinds: tuple[KVCacheSpec, int]) -> list[CacheLayer]:
    specs = [spec for spec, times in kinds for _ in range(times)]
    return [CacheLayer(name=f"layers.{i}.attn", spec=spec) for i, spec in enumerate(specs)]


PROVEN = {
    "a table of one size": layers_of((sliding(16, 24), 3), (full(16), 3)),
    "uneven chunks": layers_of((sliding(16, 24), 5), (full(16), 1)),
    "one kind": layers_of((sliding(8, 20), 4)),
    "a page a slot": layers_of((sliding(16, 24), 1), (full(16), 1)),
    "two windows and chunks": layers_of((sliding(16, 40), 4), (chunked(16, 32), 3), (full(16), 2)),
}


@pytest.mark.parametrize("backend", ["torch", pytest.param("host", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", PROVEN)
def test_the_self_proof_takes_turns_in_scratch(name: str, backend: str) -> None:
    made, report = proven(PROVEN[name], backend)
    scratch = made.ranks[0].config.scratch
    assert any(scratch) and report.passed and report.gathered_rows == report.rows
    # Three chunks, read back by each window's layer, in K and in V.
    assert report.rows > sum(3 * 100 * 2 * len(each.shifts) for each in scratch if each)


@pytest.mark.parametrize(
    ("asked", "takes_scratch", "shares_prefixes", "rules", "expected"),
    [
        ("auto", True, False, KVPIPE, True),
        ("auto", True, True, KVPIPE, False),
        ("auto", False, False, KVPIPE, False),
        ("auto", True, False, VLLM_0_33, False),
        ("off", True, False, KVPIPE, False),
        ("on", False, False, KVPIPE, True),
    ],
)
def test_auto_is_on_where_the_binding_can_and_no_prefix_is_lost(
    asked: Any, takes_scratch: bool, shares_prefixes: bool, rules: EngineRules, expected: bool
) -> None:
    request = GroupingRequest(
        ranks=(),
        limits=RequestLimits(max_model_len=9, max_num_batched_tokens=9),
        memory=(),
        rules=rules,
        takes_scratch=takes_scratch,
        shares_prefixes=shares_prefixes,
    )
    assert uses_scratch(asked, request) is expected


def test_a_run_by_itself_uses_none() -> None:
    for asked in ("auto", "off"):
        plain = command(f"grouping.scratch={asked}", "backend=meta")
        assert plain.plan.ranks[0].config.scratch == ()


@pytest.mark.parametrize(
    ("words", "knob"),
    [
        ("cache.enable_prefix_caching=true", "cache.enable_prefix_caching=false"),
        ("engine=vllm_0_33", "engine=kvpipe"),
    ],
)
def test_scratch_that_cannot_be_is_refused_with_the_way_out(words: str, knob: str) -> None:
    with pytest.raises(ConfigError) as error:
        command("grouping.scratch=on", "backend=meta", words)
    (problem,) = error.value.problems
    assert problem.key == "grouping.scratch" and problem.knob == knob


def test_ranks_use_scratch_alike_or_not_at_all() -> None:
    """One manager gives blocks to all of them."""
    limits = RequestLimits(max_model_len=4096, max_num_batched_tokens=1024)
    options: dict[str, Any] = {"prefix_caching": False, "scratch": True, "compared": ()}
    layers = layers_of((sliding(16, 64), 6), (full(16), 3))
    alike = plan([layers, layers], limits, 4 << 20, **options)
    one, other = (rank.config.scratch for rank in alike.ranks)
    assert any(one) and one == other
    unlike = plan([layers[:5], layers[5:]], limits, 4 << 20, **options)
    assert [rank.config.scratch for rank in unlike.ranks] == [(), ()]
    assert [note.knob for note in unlike.notes].count("grouping.scratch") == 1


def test_who_reads_blocks_only_refuses_a_plan_with_scratch() -> None:
    limits = RequestLimits(max_model_len=400, max_num_batched_tokens=120)
    layers = PROVEN["uneven chunks"]
    made = plan(layers, limits, 1 << 20, prefix_caching=False, scratch=True)
    for opened in (Pool.open, own_module.bind):
        with pytest.raises(ConfigError, match="plan: expected one without scratch"):
            opened(made)
    with pytest.raises(BlockError, match="scratch keeps no prefixes"):
        BlockManager.from_plan(made, prefix_caching=True)


def test_scratch_without_a_window_says_that_it_does_nothing() -> None:
    made = command("grouping.scratch=on", "backend=meta", "model=llama")
    assert made.plan.ranks[0].config.scratch == ()
    assert [note.knob for note in made.plan.notes].count("grouping.scratch") == 1
