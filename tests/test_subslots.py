"""Sub-slots: small attention blocks share the slots that states force."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from block_models import (
    POISON,
    Setting,
    Tenant,
    ValueModel,
    chunked,
    full,
    mamba,
    sliding,
)
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from layer_sets import layer_sets
from test_block_manager_machine import Blocks, run

import kvpipe
from kvpipe.blocks import BlockError, BlockManager, OutOfBlocks
from kvpipe.blocks.pool import BlockPool
from kvpipe.blocks.subslots import SubSlotPool
from kvpipe.cache.plan import KVCacheConfig, KVCacheGroupSpec, Plan
from kvpipe.errors import ConfigError
from kvpipe.front.main import run as run_words
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.allocation.soundness import block_runs
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.hybrid import make_plan
from kvpipe.stages.grouping.planning import KVPIPE
from kvpipe.stages.grouping.slots.options import SlotOptions

SUB = SlotOptions(subslots=True)
HYBRIDS = (
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "ai21labs/Jamba-v0.1",
    "nvidia/Nemotron-H-8B-Base-8K",
    "ibm-ai-platform/Bamba-9B-v2",
    "ibm-granite/granite-4.0-h-tiny",
    "Zyphra/Zamba2-2.7B",
    "tiiuae/Falcon-H1-1.5B-Base",
    "Bamba-9B + TinyLlama",
)


def planned(name: str, memory: int = 2**33, length: int = 4096, **options: Any) -> Plan:
    layer_set = layer_sets()[name]
    return make_plan(
        GroupingRequest(
            ranks=(layer_set.layers,),
            limits=layer_set.limits(2048, length),
            memory=(memory,),
            rules=KVPIPE,
            block_quantum=layer_set.block_quantum,
            shares_prefixes=False,
            **{"slots": SUB, **options},
        )
    )


def parted(plan: Plan) -> KVCacheGroupSpec:
    [group] = [group for group in plan.groups if group.blocks_per_slot > 1]
    return group


# --- the pool of one group ---------------------------------------------------------------------
class Scanned:
    """The same by looking at every place of every slot, from the first."""

    def __init__(self, per_slot: int) -> None:
        self.per_slot = per_slot
        self.references: Counter[int] = Counter()

    def slots(self) -> set[int]:
        return {block // self.per_slot for block in +self.references}

    def lowest(self, num: int, slots: set[int]) -> list[int]:
        places = (slot * self.per_slot + i for slot in sorted(slots) for i in range(self.per_slot))
        return [block for block in places if not self.references[block]][:num]

    def holes(self) -> int:
        return len(self.slots()) * self.per_slot - len(+self.references)


@pytest.mark.parametrize("seed", range(8))
def test_the_lowest_free_place_is_handed_out_and_a_slot_taken_only_when_none_is_left(
    seed: int,
) -> None:
    draw = random.Random(seed)
    common = BlockPool(draw.choice([4, 9, 30]))
    pool = SubSlotPool(common, draw.choice([2, 3, 7]))
    slow, held, others = Scanned(pool.per_slot), list[int](), list[int]()
    for _ in range(400):
        free, num = common.num_free, draw.randrange(1, 12)
        match draw.choice(["take", "take", "give", "share", "other", "return"]):
            case "take":
                needed = max(0, -(-(num - slow.holes()) // pool.per_slot))
                before = slow.slots()
                try:
                    got = pool.allocate(num).tolist()
                except OutOfBlocks:
                    assert needed > free == common.num_free and slow.slots() == before
                    continue
                taken = {block // pool.per_slot for block in got} - before
                assert len(taken) == needed == free - common.num_free
                assert sorted(got) == slow.lowest(num, before | taken)
                slow.references.update(got)
                held += got
            case "give" if held:
                gone = draw.sample(held, min(num, len(held)))
                for block in gone:
                    held.remove(block)
                before = slow.slots()
                expected = pool.slots_to_take(0, np.array(gone, np.intp))
                pool.free(gone)
                slow.references.subtract(gone)
                assert common.num_free - free == len(before - slow.slots()) == -expected
            case "share" if held:
                block = draw.choice(held)
                pool.share([block])
                held.append(block)
                slow.references[block] += 1
            case "other" if free:
                others += common.allocate(1).tolist()
            case "return" if others:
                common.free([others.pop(draw.randrange(len(others)))])
        assert not slow.slots() & set(others), "a slot of two owners"
        assert (pool.num_slots, pool.num_holes) == (len(slow.slots()), slow.holes())
        every = list(range(common.num_blocks * pool.per_slot))
        assert pool.references(every).tolist() == [slow.references[block] for block in every]
    pool.free(held)
    common.free(others)
    assert common.num_free == common.num_blocks - 1


def test_a_block_that_is_not_in_use_is_refused_before_anything_moves() -> None:
    pool = SubSlotPool(BlockPool(4), 3)
    blocks = pool.allocate(4).tolist()
    for wrong in ([*blocks, blocks[0]], [0], [blocks[-1] + 1]):
        with pytest.raises(BlockError, match="is not in use"):
            pool.free(wrong)
        assert pool.num_live == 4


# --- the manager -------------------------------------------------------------------------------
PARTED = [
    (Setting("state and full", [mamba(40, "none"), full(2)], "none"), (1, 5)),
    (Setting("drafts", [full(4), mamba(40, "none", 2)], "none"), (3, 1)),
    (Setting("a window, too", [sliding(3, 5), mamba(3, "none"), full(3)], "none"), (1, 1, 4)),
    (Setting("a window in parts", [sliding(2, 5), mamba(3, "none"), full(3)], "none"), (4, 1, 1)),
    (Setting("two in parts", [chunked(2, 6), mamba(3, "none"), full(2)], "none"), (2, 1, 7)),
    (Setting("align", [mamba(4, "align", 1), full(2)], "align"), (1, 6)),
]


def config_of(specs: list[KVCacheSpec], per_slot: tuple[int, ...], slots: int) -> KVCacheConfig:
    groups = tuple(
        KVCacheGroupSpec(
            layer_names=(f"layers.{i}",),
            spec=spec if k == 1 else spec.with_block_size(spec.block_size * k),
            blocks_per_slot=k,
        )
        for i, (spec, k) in enumerate(zip(specs, per_slot, strict=True))
    )
    return KVCacheConfig(num_blocks=slots, tensors=(), groups=groups, bytes_per_block=1)


class PartedModel(ValueModel):
    """Memory by group and block: a block is so many-th part of a slot, which is one group's."""

    def key(self, group: int, block: int) -> int:
        return group * 10**6 + block

    def per_slot(self, group: int) -> int:
        return self.manager.config.groups[group].blocks_per_slot

    def copy(self, copies: Any) -> None:
        for pair in copies:
            source = self.memory.get(self.key(pair.group, pair.src), {})
            self.memory[self.key(pair.group, pair.dst)] = dict(source)

    def entries(self, group: int) -> Counter[int]:
        found: Counter[int] = Counter()
        for name in self.tenants:
            row = self.manager.block_table(group, [name])[0].tolist()
            found.update(block for block in row if block != -1)
        return found

    def _write_one(self, group: int, tenant: Tenant, position: int, slot: int) -> None:
        spec = self.setting.specs[group]
        block, offset = divmod(slot, spec.block_size)
        assert block >= self.per_slot(group), "the null block is never written"
        assert self.entries(group)[block] == 1, f"block {block} has another reader"
        offset = 0 if spec.is_state else offset
        value = self.value(group, tenant, position)
        self.memory.setdefault(self.key(group, block), {})[offset] = value

    def check_values(self) -> None:
        for name, tenant in self.tenants.items():
            assert self.manager.num_tokens(name) == tenant.stored
            for group in range(len(self.setting.specs)):
                row = self.manager.block_table(group, [name])[0]
                for position in self.read_positions(group, tenant.stored, tenant):
                    index, offset = self.place(group, position)
                    found = self.memory.get(self.key(group, int(row[index])), {}).get(offset)
                    expected = self.value(group, tenant, position)
                    assert found == expected, f"{name} group {group} position {position}"

    def check_owners(self) -> None:
        """No slot is two groups'; each that is named is in use, and no other."""
        owners: dict[int, int] = {}
        for group in range(len(self.setting.specs)):
            for block in self.entries(group):
                slot = block // self.per_slot(group)
                assert owners.setdefault(slot, group) == group, f"slot {slot} is two groups'"
        references = self.manager.pool.references(range(self.manager.pool.num_blocks)).tolist()
        assert {slot for slot, n in enumerate(references) if n} == set(owners)

    def check_counts(self) -> None:
        super().check_counts()
        for group, holes in enumerate(self.manager.num_holes):
            k, live = self.per_slot(group), len(self.entries(group))
            slots = {block // k for block in self.entries(group)}
            assert holes == len(slots) * k - live

    def poison_free_blocks(self) -> None:
        live = {self.key(g, b) for g in range(len(self.setting.specs)) for b in self.entries(g)}
        for key in self.memory.keys() - live:
            self.memory[key] = dict.fromkeys(self.memory[key], POISON)

    def snapshot(self) -> tuple[Any, ...]:
        blocks = [sorted(self.entries(g).items()) for g in range(len(self.setting.specs))]
        return (*super().snapshot(), self.manager.num_holes, blocks)


class Parts(Blocks):
    """The same machine; nothing is cached by prefix."""

    @initialize(which=st.integers(0, 99), slots=st.integers(4, 30), few=st.sampled_from([0, 8]))
    def start(self, which: int, slots: int, few: int) -> None:  # type: ignore[override]
        setting, per_slot = PARTED[which % len(PARTED)]
        config = config_of(setting.specs, per_slot, slots)
        manager = BlockManager(config, setting.limits(), max_num_requests=6)
        manager._decoding.few = few
        self.model = PartedModel(setting, manager)
        self.names = iter(range(1 << 30))

    @precondition(lambda self: self.ready())
    @rule(draw=st.data())
    def swap_out(self, draw: st.DataObject) -> None:
        name, model = self.pick(draw, self.model.tenants), self.model

        def save(group: int, ids: Any) -> Any:
            return [dict(model.memory.get(model.key(group, b), {})) for b in ids.tolist()]

        model.manager.swap_out(name, save)
        model.away[name] = model.tenants.pop(name)

    @precondition(lambda self: self.model.away and len(self.model.tenants) < 6)
    @rule(draw=st.data())
    def swap_in(self, draw: st.DataObject) -> None:
        name, model = self.pick(draw, self.model.away), self.model
        before = model.snapshot()

        def restore(group: int, ids: Any, packed: Any) -> None:
            keys = [model.key(group, block) for block in ids.tolist()]
            model.memory.update(zip(keys, packed, strict=True))

        try:
            model.manager.swap_in(name, restore)
        except OutOfBlocks as error:
            assert error.short_by > 0 and model.snapshot() == before
            return
        model.tenants[name] = model.away.pop(name)


def test_any_sequence_of_steps_keeps_every_value() -> None:
    run(4, 20, Parts)


@pytest.mark.full
def test_any_of_many_long_sequences_keeps_every_value() -> None:
    run(600, 50, Parts)


LATER = [pytest.param(n, marks=pytest.mark.full) for n in range(1, 8)]


@pytest.mark.parametrize("seed", [0, *LATER])
def test_as_many_requests_as_whole_slots_hold_never_run_dry_whatever_came_before(
    seed: int,
) -> None:
    """The promise: capacity counts whole slots. A group never has more slots than the most blocks
    it ever had at a time fill."""
    draw = random.Random(seed)
    setting, per_slot = PARTED[0]
    limits, longest = setting.limits(), 40
    config = config_of(setting.specs, per_slot, 1 + 4 * (1 + 4))  # 40 tokens: 20 blocks, 4 slots
    each = sum(group.spec.peak_blocks(limits) for group in config.groups)
    most = (config.num_blocks - 1) // each
    assert (each, most) == (5, 4)
    manager = BlockManager(config, limits, max_num_requests=most)
    stored: dict[int, int] = {}
    for number in range(1200):
        if len(stored) < most and draw.random() < 0.3:
            manager.add_request(number)
            stored[number] = 0
        name = draw.choice([*stored, -1])
        if name < 0:
            continue
        new = min(draw.randrange(1, 13), longest - stored[name])
        if not new or draw.random() < 0.1:
            manager.free(name)
            del stored[name]
            continue
        manager.begin_step()
        manager.allocate(name, new)  # never OutOfBlocks
        stored[name] += new


def test_what_sub_slots_do_not_keep_is_refused() -> None:
    config = config_of([full(2), full(2)], (1, 3), 9)
    with pytest.raises(BlockError, match="no prefixes"):
        BlockManager(
            config, RequestLimits(max_model_len=40, max_num_batched_tokens=12), prefix_caching=True
        )


# --- the plan ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", HYBRIDS)
def test_small_blocks_fill_a_slot_and_no_two_of_them_share_a_byte(name: str) -> None:
    plan = planned(name)
    config, group = plan.ranks[0].config, parted(plan)
    layer_set, index = layer_sets()[name], plan.groups.index(group)
    assert group.block_spec.block_size == (layer_set.block_quantum or 16)
    assert {n for g in plan.groups for n in g.layer_names} == {
        each.name for each in layer_set.layers
    }
    block = sum(group.block_spec.of_layer(n).page_size_bytes for n in group.layer_names)
    assert block * group.blocks_per_slot == config.bytes_per_block
    addresses = address_map(config, plan.shared_layers)
    assert addresses.blocks_of(index) == config.num_blocks * group.blocks_per_slot
    first, used = group.blocks_per_slot, list[tuple[int, int]]()  # the blocks of slot 1
    for layer in addresses.layers:
        if layer.group != index:
            continue
        for view in layer.views:
            assert view.kernel_ids(addresses.blocks_of(index)).are_dense
            used += block_runs(view, range(first, 2 * first))
    used.sort()
    ends = [start + length for start, length in used]
    assert all(end <= start for end, (start, _) in zip(ends, used[1:], strict=False))
    assert config.bytes_per_block <= used[0][0] and ends[-1] <= 2 * config.bytes_per_block


def test_capacity_counts_whole_slots() -> None:
    plan = planned("Qwen/Qwen3-Next-80B-A3B-Instruct")
    group = parted(plan)
    tokens = group.blocks_per_slot * group.block_spec.block_size
    states = len(plan.groups) - 1
    assert plan.capacity is not None and plan.slots is not None
    assert plan.capacity.steady_blocks == states + -(-4096 // tokens)
    assert plan.capacity.peak_blocks == plan.capacity.steady_blocks
    assert plan.capacity.requests_steady == (
        plan.capacity.usable_blocks // plan.capacity.steady_blocks
    )
    assert plan.slots.never_worse_than == () and plan.slots.compared[0][0] == "equal slots"


@pytest.mark.parametrize("name", ["google/gemma-3-27b-it_text", "openai/gpt-oss-20b"])
def test_layers_without_states_are_planned_as_without_sub_slots_and_told_so(name: str) -> None:
    plan, plain = planned(name), planned(name, slots=SlotOptions())
    assert plan.groups == plain.groups and plan.ranks == plain.ranks
    assert any(note.knob == "grouping.subslots" for note in plan.notes)


@pytest.mark.full
def test_nobody_s_plan_changes_who_did_not_ask() -> None:
    words = ["model=jamba", "device=cpu", "cache.kv_cache_memory_bytes=200MiB", "backend=meta"]
    words += ["scheduler.max_model_len=2048"]
    plain, auto = kvpipe.run(words), kvpipe.run([*words, "grouping.subslots=auto"])
    assert all(group.blocks_per_slot == 1 for group in plain.plan.groups)
    assert plain.plan.groups == auto.plan.groups
    assert '"subslots": {' not in json.dumps(plain.to_json()["plan"])
    [note] = [n for n in auto.to_json()["notes"] if n["knob"] == "grouping.subslots"]
    assert "kvpipe replay" in note["text"]


SETTINGS = ["model=jamba", "device=cpu", "cache.kv_cache_memory_bytes=200MiB", "backend=meta"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine=vllm_0_33"], "engine=kvpipe"),
        (["grouping.scratch=on", "cache.enable_prefix_caching=false"], "grouping.scratch=off"),
        (["grouping.for_engine=vllm"], "grouping.for_engine=kvpipe"),
        (["parallel.pipeline_parallel_size=2"], "parallel.pipeline_parallel_size=1"),
        (["cache.mamba_cache_mode=align"], "cache.enable_prefix_caching=false"),
    ],
)
def test_what_does_not_go_with_sub_slots_is_refused_by_its_key(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match="grouping.subslots: expected off, or auto") as caught:
        kvpipe.run([*SETTINGS, "grouping.subslots=on", *words])
    assert said in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("inject", ["none", "swap", "lost"])
def test_the_self_proof_writes_and_reads_every_block(inject: str) -> None:
    words = ["model=jamba", "device=cpu", "cache.kv_cache_memory_bytes=120MiB", "backend=torch"]
    words += ["scheduler.max_model_len=1024", "grouping.subslots=on"]
    words += [f"binding.verify.inject={inject}"]
    made = kvpipe.run(words)
    assert parted(made.plan).blocks_per_slot > 1
    verify = made.bound[0].verify
    assert verify.tokens and (not verify.mismatches) == (inject == "none")


def test_plan_json_and_the_report_say_how_many_blocks_share_a_slot() -> None:
    words = [*SETTINGS, "grouping.subslots=on", "scheduler.max_model_len=2048", "report=full"]
    made = kvpipe.run(words)
    group = parted(made.plan)
    [told] = [
        g["subslots"] for g in made.to_json()["plan"]["ranks"][0]["groups"] if "subslots" in g
    ]
    slot = made.plan.ranks[0].config.bytes_per_block
    assert told == {
        "blocks_per_slot": group.blocks_per_slot,
        "block_size": 16,
        "block_bytes": slot // group.blocks_per_slot,
    }
    assert f"16 x {group.blocks_per_slot}" in made.text()
    assert "count whole slots" in made.text()


# --- replay chooses ----------------------------------------------------------------------------
def replayed(capsys: Any, *words: str) -> Any:
    run_words(["replay", "report=json", "device=h100_80gb", "trace.arrivals=at_once", *words])
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_a_replay_takes_sub_slots_where_the_trace_is_served_a_hundredth_sooner(
    capsys: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=falcon_h1", "cache.kv_cache_memory_bytes=512MiB", "trace=synthetic"]
    words += ["trace.max_requests=60", "scheduler.max_model_len=4096"]
    off = replayed(capsys, *words)
    on = replayed(capsys, *words, "grouping.subslots=on")
    auto = replayed(capsys, *words, "grouping.subslots=auto")
    assert "subslots" not in off and on["simulated_s"] <= 0.99 * off["simulated_s"]
    found = auto.pop("subslots")
    assert found["taken"] and auto["simulated_s"] == on["simulated_s"] == found["subslots_s"]
    assert found["equal_s"] == off["simulated_s"]


@pytest.mark.full
def test_a_replay_leaves_them_where_they_bring_less(
    capsys: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=jamba", "cache.kv_cache_memory_bytes=4GiB", "trace=synthetic"]
    words += ["trace.max_requests=20", "scheduler.max_model_len=4096"]
    off, auto = (replayed(capsys, *words, f"grouping.subslots={way}") for way in ("off", "auto"))
    found = auto.pop("subslots")
    assert not found["taken"] and found["subslots_s"] > 0.99 * found["equal_s"]
    for key in ("simulated_s", "peak_in_use", "bytes_per_block"):
        assert auto[key] == off[key]


def test_a_replay_says_why_sub_slots_were_not_tried(
    capsys: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["trace=synthetic", "trace.max_requests=5", "grouping.subslots=auto"]
    few = ["model=llama", "cache.kv_cache_memory_bytes=4GiB", "scheduler.max_model_len=4096"]
    found = replayed(capsys, *few, *words)["subslots"]
    assert found["subslots_s"] is None and "no use" in found["reason"]


def test_a_layer_alone_is_planned_with_the_option_on() -> None:
    spec = full(16)
    layers = [CacheLayer(name=f"layers.{i}", spec=spec) for i in range(3)]
    plan = kvpipe.plan(
        layers, RequestLimits(max_model_len=64, max_num_batched_tokens=64), 2**20, slots=SUB
    )
    assert len(plan.groups) == 1 and plan.groups[0].blocks_per_slot == 1


@pytest.mark.parametrize("which", range(len(PARTED)))
def test_a_fork_that_writes_gets_a_copy_of_the_block_alone(which: int) -> None:
    setting, per_slot = PARTED[which]
    config = config_of(setting.specs, per_slot, 30)
    manager = BlockManager(config, setting.limits(), max_num_requests=6)
    model = PartedModel(setting, manager)
    tokens = [1, 2, 3, 4, 5]
    manager.add_request("a", tokens)
    model.tenants["a"] = Tenant(list(tokens))
    manager.begin_step()
    manager.allocate("a", 5)
    model.write([("a", 5)])
    manager.fork("a", "b")
    model.tenants["b"] = Tenant(list(tokens), 5)
    for token in range(12):
        for name in ("a", "b"):
            manager.begin_step()
            model.tenants[name].tokens.append(10 * token + (name == "b"))
            model.copy(manager.append([name]))
            model.write([(name, 1)])
            model.check()
    manager.free("a")
    del model.tenants["a"]
    model.check()
