"""binding: the runner's order against the engine's answers, errors, and a self-proof with teeth."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b

import pytest
from cache_configs import config_of, full, names, representative

import kvpipe
from kvpipe.backends.meta import MetaBackend
from kvpipe.engines.vllm_0_33 import PLUGIN as VLLM_0_33
from kvpipe.errors import ConfigError
from kvpipe.request.confdir import CONF_DIR, shipped_option
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.stages.allocation import address_map
from kvpipe.stages.allocation.base import AllocationRequest
from kvpipe.stages.allocation.buffers import Buffers
from kvpipe.stages.binding.base import AttentionLayer, BindingRequest
from kvpipe.stages.binding.context import ContextBinding, bind_layer
from kvpipe.stages.binding.order import add_kv_sharing_layers, layer_index, runner_order
from kvpipe.stages.binding.served_requests import proof_positions, proof_requests
from kvpipe.stages.grouping.planning import plan

torch = pytest.importorskip("torch")

from kvpipe.backends.torch_ import TorchBackend  # noqa: E402
from kvpipe.blocks.slots import LaterSlots  # noqa: E402
from kvpipe.blocks.table import GroupTable  # noqa: E402

BACKEND = TorchBackend()
MODELS = representative()
LIMITS = RequestLimits(max_model_len=20, max_num_batched_tokens=8, max_encoder_tokens=6)
LAYOUTS = sorted(path.stem for path in (CONF_DIR / "layout").glob("*.yaml"))
PLACEMENTS = sorted(path.stem for path in (CONF_DIR / "placement").glob("*.yaml"))


def stage(inject: str = "none", **options) -> ContextBinding:
    """The shipped options, with these."""
    shipped = shipped_option("binding", "context")
    verify = {**shipped.pop("verify"), "inject": inject, **options.pop("verify", {})}
    return ContextBinding(ContextBinding.Options(**{**shipped, **options, "verify": verify}))


def buffers_for(config, layout="auto", placement="auto", shared=(), backend=BACKEND, init="zero"):
    addresses = address_map(config, shared, layout, placement)
    allocation = Buffers(Buffers.Options(name="buffers", init=init))
    return allocation.run(AllocationRequest(config=config, addresses=addresses), backend)


def layers_of(config, shared=()):
    return (
        *(name for group in config.groups for name in group.layer_names),
        *(layer for layer, _ in shared),
    )


def bind(config, inject="none", shared=(), options=None, limits=LIMITS, backend=BACKEND, **more):
    fields = {
        "layer_names": layers_of(config, shared),
        "buffers": None,
        **{k: more.pop(k) for k in ("layer_names", "kv_sharing_fast_prefill") if k in more},
    }
    fields["buffers"] = buffers_for(config, shared=shared, backend=backend, **more)
    request = BindingRequest(config=config, limits=limits, **fields)
    return stage(inject, **(options or {})).run(request, backend)


# --- order, against the engine's own answers -------------------------------------------------
def test_every_golden_binding_case_gives_the_same_order_and_groups(golden) -> None:
    ran = 0
    for case in golden("bind"):
        given, answer = case["input"], case["answer"]
        ran += 1
        if given["function"] == "bind_kv_cache":

            def call(given=given):
                return runner_order(given["layer_names"], given.get("num_attn_module", 1))
        else:

            def call(given=given):
                shared = given["shared_kv_cache_layers"].items()
                return add_kv_sharing_layers(given["groups"], shared)

        if "error" in answer:
            with pytest.raises(ConfigError) as told:
                call()
            assert told.value.reference_type == answer["error"]["type"], case["id"]
            continue
        wanted = answer.get("runner_order", answer.get("groups_after"))
        assert call() == wanted, case["id"]
        if "runner_only" in answer:
            assert sorted(given["shared_kv_cache_layers"]) == answer["runner_only"]
    assert ran >= 16


@pytest.mark.parametrize(
    ("name", "modules", "index"),
    [("a.3.b", 1, 3), ("a.3.self_attn.1.x", 2, 7), ("a.3.mixer", 2, 3), ("layers.12.attn", 4, 12)],
)
def test_a_layer_index_is_the_integer_in_the_name(name: str, modules: int, index: int) -> None:
    assert layer_index(name, modules) == index


@pytest.mark.parametrize(
    ("name", "modules"),
    [("a.b", 1), ("a.1.2", 1), ("a.1.mlp.2", 2), ("a.1.attn.2.3", 2), ("a.\u0663", 1)],
)
def test_a_name_without_its_one_integer_is_refused(name: str, modules: int) -> None:
    with pytest.raises(ConfigError, match="binding: expected a layer name with one integer"):
        layer_index(name, modules)


# --- what is bound ---------------------------------------------------------------------------
def test_every_layer_gets_its_own_cache_in_layer_order() -> None:
    config = config_of([((*reversed(names(3)),), full())])
    bound = bind(config)
    assert [name for name, _ in bound.runner_kv_caches] == names(3)
    pointers = [cache.data_ptr() for _, cache in bound.runner_kv_caches]
    assert len(set(pointers)) == 3
    for name, cache in bound.runner_kv_caches:
        layer = bound.forward_context[name]
        assert layer.kv_cache.data_ptr() == cache.data_ptr() and layer.bound
        assert cache.shape == (2, 7, 4, 2, 3)


def test_states_are_bound_as_a_tuple_of_their_arrays() -> None:
    bound = bind(MODELS["jamba"])
    conv, ssm = bound.forward_context[names(1, 2, "mixer")[0]].kv_cache
    assert conv.shape == (7, 4, 4) and ssm.shape == (7, 4, 3)


def test_a_sharing_layer_aliases_its_target_and_is_runner_only() -> None:
    shared = ((names(1, 5)[0], names(3)[2]), (names(1, 4)[0], names(3)[1]))
    bound = bind(MODELS["full"], shared=shared)
    assert bound.runner_only == tuple(layer for layer, _ in shared)
    for layer, target in shared:
        mine, theirs = bound.forward_context[layer], bound.forward_context[target]
        assert mine.kv_cache.data_ptr() == theirs.kv_cache.data_ptr()
    assert bound.groups == ((*names(3), *(layer for layer, _ in shared)),)
    assert [name for name, _ in bound.runner_kv_caches] == [*names(3), *names(2, 4)]
    assert bound.verify.mismatches == 0 and bound.verify.layers == 3


def test_fast_prefill_names_the_layers_that_need_slots() -> None:
    shared = ((names(1, 5)[0], names(3)[2]),)
    bound = bind(MODELS["full"], shared=shared, kv_sharing_fast_prefill=True)
    assert bound.prefill_layers == tuple(names(3))
    assert bound.notes == ("fast prefill: 3 of 4 layers need slots in prefill",)
    assert bind(MODELS["full"], shared=shared).prefill_layers == (*names(3), names(1, 5)[0])


def test_fast_prefill_without_sharing_layers_says_that_it_has_no_effect() -> None:
    bound = bind(MODELS["full"], kv_sharing_fast_prefill=True)
    assert bound.prefill_layers == tuple(names(3))
    assert "kv_sharing_fast_prefill has no effect: no layer shares" in bound.notes[0]


# --- errors ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bind(MODELS["full"], layer_names=(*names(2), "model.layers.2.attn")),
            r"expected a layer of the model, got 'model.layers.2.self_attn.attn'.*did you mean",
        ),
        (
            lambda: bind(MODELS["full"], layer_names=tuple(names(4))),
            r"expected a buffer for model.layers.3.self_attn.attn, got none in the plan",
        ),
        (
            lambda: bind(MODELS["full"], layer_names=(*names(3), names(1)[0])),
            r"model.layers.0.self_attn.attn to be bound once, got it is listed twice",
        ),
        (
            lambda: bind(MODELS["full"], shared=((names(1, 5)[0], names(1, 4)[0]),)),
            r"a cache that model.layers.5.self_attn.attn can share, got 'model.layers.4",
        ),
        (
            lambda: bind(
                MODELS["whisper"],
                options={"one_cache_per_index": True},
            ),
            r"one_cache_per_index: expected one cache of layer index 0, got .*encoder_attn.attn: "
            r"all but one would be lost",
        ),
    ],
)
def test_a_binding_that_cannot_be_is_refused(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_sharing_layer_is_no_target() -> None:
    shared = ((names(1, 5)[0], names(3)[0]), (names(1, 6)[0], names(1, 5)[0]))
    with pytest.raises(ConfigError, match="model.layers.6.*can share, got 'model.layers.5"):
        bind(MODELS["full"], shared=shared)


def test_a_layer_that_the_context_does_not_know_is_refused() -> None:
    buffers = buffers_for(MODELS["full"])
    with pytest.raises(ConfigError, match="expected a layer of the model, got 'model.layers.1"):
        bind_layer({names(1)[0]: AttentionLayer(name=names(1)[0])}, names(2)[1], buffers)


def test_a_layer_is_bound_once() -> None:
    buffers, name = buffers_for(MODELS["full"]), names(1)[0]
    context = {name: AttentionLayer(name=name)}
    bind_layer(context, name, buffers)
    with pytest.raises(ConfigError, match=f"{name} to be bound once, got a second cache for it"):
        bind_layer(context, name, buffers)


def test_a_layer_without_a_buffer_is_refused() -> None:
    buffers, name = buffers_for(MODELS["full"], placement="per_tensor"), names(3)[2]
    context = {n: AttentionLayer(name=n) for n in (name, "model.layers.9.attn")}
    with pytest.raises(ConfigError, match="a buffer for model.layers.9.attn, got none in the all"):
        bind_layer(context, "model.layers.9.attn", buffers)
    short = replace(buffers, buffers=buffers.buffers[:2])
    with pytest.raises(ConfigError, match=f"a buffer for {name}, got an allocation without it"):
        bind_layer(context, name, short)


# --- the self-proof -------------------------------------------------------------------------------
def placed(model: str):
    """Every layout and placement that is not refused by name."""
    for layout in LAYOUTS:
        for placement in PLACEMENTS:
            try:
                address_map(MODELS[model], (), layout, placement)
            except ConfigError:
                continue
            yield layout, placement


@pytest.mark.parametrize("model", MODELS)
def test_the_proof_passes_on_every_layout_and_placement(model: str) -> None:
    for layout, placement in placed(model):
        bound = bind(MODELS[model], layout=layout, placement=placement)
        report = bound.verify
        assert report.passed and report.mismatches == 0, (layout, placement)
        assert report.layers == len(layers_of(MODELS[model]))
        assert report.rows == report.gathered_rows > 0 < report.tokens + report.state_pages


@pytest.mark.parametrize("inject", ["swap", "lost", "alias"])
@pytest.mark.parametrize("model", MODELS)
def test_every_injected_fault_shows_in_every_model(model: str, inject: str) -> None:
    for placement in ("auto", "per_tensor"):
        report = bind(MODELS[model], inject, placement=placement).verify
        assert report.mismatches > 0 and not report.passed and report.inject == inject


def test_alias_shows_where_the_first_two_layers_alike_lie_on_the_same_bytes() -> None:
    """Layer i of every group lies in tensor i: 0 and 1 overlay each other, 0 and 2 do not."""
    first, second, third, fourth = names(4)
    config = config_of([((first, third), full()), ((second, fourth), full())], 40)
    addresses = address_map(config)
    assert addresses.of_layer(first).views[0].offset == addresses.of_layer(second).views[0].offset
    assert bind(config, "alias").verify.mismatches > 0
    alone = config_of([((first,), full()), ((second,), full())], 40)
    with pytest.raises(ConfigError, match="inject: expected a model in which two layers have"):
        bind(alone, "alias")


class GatherBackwards(TorchBackend):
    def gather(self, *given, **options):
        return super().gather(*given, **options).flip(0)


class PackTheWrongBlock(TorchBackend):
    def pack(self, buffers, views, block_ids):
        return super().pack(buffers, views, [*block_ids[1:], 0])


class TheOtherSlot(TorchBackend):
    """Agrees with itself: what it writes to a neighbour of the slot it also reads there."""

    def write_kv(self, buffer, view, new, slot_mapping, scale=1.0):
        super().write_kv(buffer, view, new, slot_mapping ^ 1, scale)

    def slot_mapping(self, *given):
        return super().slot_mapping(*given) ^ 1


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        ("full", GatherBackwards),
        ("gemma", GatherBackwards),
        ("states alone", PackTheWrongBlock),
        ("full", TheOtherSlot),
    ],
)
def test_a_wrong_operation_of_the_backend_is_seen_by_one_of_the_two_readings(
    model: str, backend: type[TorchBackend]
) -> None:
    assert bind(MODELS[model]).verify.passed
    report = bind(MODELS[model], backend=backend()).verify
    assert 0 < report.mismatches <= report.rows


def test_slots_of_the_manager_that_its_block_tables_do_not_confirm_are_seen(monkeypatch) -> None:
    true = LaterSlots.now
    monkeypatch.setattr(LaterSlots, "now", lambda slots: true(slots) ^ 1)
    assert bind(MODELS["full"]).verify.mismatches > 0


def test_a_block_that_the_manager_gives_twice_is_seen(monkeypatch) -> None:
    true = GroupTable.put
    monkeypatch.setattr(GroupTable, "put", lambda *given: true(*given[:3], given[3] // 2 + 1))
    assert bind(MODELS["full"]).verify.mismatches > 0


@pytest.mark.parametrize("init", ["zero", "poison"])
@pytest.mark.parametrize("model", ["full", "jamba", "padded attention"])
def test_the_proof_leaves_the_buffers_as_it_found_them(model: str, init: str) -> None:
    bound = bind(MODELS[model], init=init)
    byte = {"zero": 0, "poison": 0xFF}[init]
    assert all((buffer.data == byte).all() for buffer in bound.buffers.buffers)


def test_the_digest_is_the_buffers_and_changes_with_a_fault() -> None:
    first, again, lost = (
        bind(MODELS["gemma"], inject).verify for inject in ("none", "none", "lost")
    )
    assert first.digest_of == "buffers" and len(first.digest) == 64
    assert first.digest == again.digest != lost.digest
    other = bind(MODELS["gemma"], options={"verify": {"seed": 1}}).verify
    assert other.digest != first.digest  # other block ids


def test_tensors_that_are_elsewhere_are_mismatches(monkeypatch) -> None:
    """The model holds kv_cache, kernels hold views: the proof also compares the two."""
    monkeypatch.setattr(
        "kvpipe.stages.binding.context._cache", lambda buffers, name: buffers.native(names(1)[0])
    )
    assert bind(MODELS["full"]).verify.mismatches == 2


def test_a_plan_without_memory_is_bound_but_not_proved() -> None:
    bound = bind(MODELS["full"], backend=MetaBackend())
    assert bound.verify.reason == "no memory" and bound.verify.rows == 0
    assert [cache for _, cache in bound.runner_kv_caches] == [None] * 3


def test_the_proof_can_be_switched_off() -> None:
    report = bind(MODELS["full"], options={"verify": {"enabled": False}}).verify
    assert report.reason == "not asked for" and report.layers == 0


def test_alias_needs_two_layers_alike_and_swap_does_not_need_two_blocks() -> None:
    one = config_of([(names(1), full())], 2)
    with pytest.raises(ConfigError, match="inject: expected a model in which two layers have"):
        bind(one, "alias")
    assert bind(one, "swap").verify.mismatches > 0


def test_a_pool_with_only_the_null_block_proves_nothing_and_says_so() -> None:
    config = config_of([(names(2), full())], 1)
    assert bind(config).verify.reason == "nothing to store, or no request fits"


def test_the_rows_really_lie_where_the_json_says() -> None:
    """A third way: the digest of a buffer filled by hand from the scheme that _pieces states."""
    config = config_of([(names(1), full(2, 1, 8))], 4)
    report = bind(config, limits=replace(LIMITS, max_model_len=3)).verify
    requests = proof_requests(config, replace(LIMITS, max_model_len=3), 3, 16384, 0)
    addresses = json.loads(json.dumps(address_map(config).to_json()))
    (size,) = addresses["buffers"]
    by_hand = bytearray(size)
    for number, request in enumerate(requests):
        for position in range(request.num_tokens):
            block = request.tables[0][position // 2]
            for array, base in (("k", 0), ("v", 2 * 16)):  # [B, L=1, 2, N=2, H=1, D=8] of 2 bytes
                start = block * 64 + base + position % 2 * 16
                key = f"{names(1)[0]}/{array}/{number}/{position}/0".encode()
                by_hand[start : start + 16] = blake2b(key, digest_size=16).digest()
    from hashlib import sha256

    assert report.digest == sha256(by_hand).hexdigest()
    assert sum(request.num_tokens for request in requests) >= 4


# --- the requests of the proof ---------------------------------------------------------------
@pytest.mark.parametrize("model", MODELS)
def test_a_block_id_belongs_to_one_group_and_request_and_never_is_the_null_block(model) -> None:
    config = MODELS[model]
    for seed in range(30):
        requests = proof_requests(config, LIMITS, 5, 16384, seed)
        ids = [i for request in requests for table in request.tables for i in table.values()]
        assert ids and len(ids) == len(set(ids)) and 0 not in ids and max(ids) < config.num_blocks
        assert all(request.num_tokens <= LIMITS.max_model_len for request in requests)


@pytest.mark.parametrize("model", MODELS)
def test_slots_are_those_that_the_block_tables_give_for_their_positions(model: str) -> None:
    config = MODELS[model]
    for request in proof_requests(config, LIMITS, 5, 16384, 0):
        for group, table, slots in zip(config.groups, request.tables, request.slots, strict=True):
            size = group.spec.block_size
            for position, slot in slots.items():
                assert slot == table[position // size] * size + position % size


def test_requests_are_prefilled_in_chunks_and_decoded_to_what_the_pool_has() -> None:
    """Chunks of 8 in a pool of 6 blocks of 4: 1 token; 3 blocks, for 2 of 5 are left to others; 1
    token; then decode steps of one token, until one more block is needed than there is."""
    assert [r.num_tokens for r in proof_requests(MODELS["full"], LIMITS, 3, 16384, 0)] == [4, 15, 1]
    roomy = replace(MODELS["full"], num_blocks=40)
    assert [r.num_tokens for r in proof_requests(roomy, LIMITS, 5, 16384, 0)] == [5, 20, 1, 10, 3]
    assert [r.num_tokens for r in proof_requests(roomy, LIMITS, 2, 7, 0)] == [5, 7]


def test_a_context_parallel_rank_proves_the_tokens_that_it_keeps() -> None:
    config, limits = config_of([(names(2), full())], 40), replace(LIMITS, dcp=2)
    for request in proof_requests(config, limits, 2, 16384, 0):
        kept = -(-request.num_tokens // 2)  # rank 0 of 2 keeps every other token, from the first
        assert sorted(request.slots[0]) == list(range(kept))
    report = bind(config, limits=limits).verify
    assert report.passed and report.tokens == sum((3, 10, 1))


def test_large_blocks_are_sampled_so_that_little_is_gathered() -> None:
    config = config_of([(names(1), full(block=300, heads=1))], 60)
    limits = replace(LIMITS, max_model_len=9000, max_num_batched_tokens=500)
    held = max(proof_requests(config, limits, 2, 16384, 0), key=lambda request: request.num_tokens)
    assert held.num_tokens == 8704  # half of 59 - 1 free blocks, and what is decoded beyond
    chosen = proof_positions(held, 0, 300, 40, 0)
    assert {position // 300 for position in chosen} == {0, 29}
    assert len(chosen) == 40 and {0, 299, 8700, 8703} <= set(chosen)
    assert [len(proof_positions(held, 0, 300, most, 0)) for most in (1, 2, 3, 5)] == [2, 2, 3, 5]


def test_a_window_holds_only_what_its_spec_says() -> None:
    limits = replace(LIMITS, max_model_len=200)
    config = replace(MODELS["gemma"], num_blocks=200)
    longest = max(proof_requests(config, limits, 3, 16384, 0), key=lambda r: r.num_tokens)
    windows, full_table = longest.tables[0], longest.tables[-1]
    assert longest.num_tokens > 9 + 4
    assert len(full_table) == -(-longest.num_tokens // 4)
    assert min(windows) == (longest.num_tokens - 9) // 4  # window 9: the oldest token still seen


# --- plans of another engine -----------------------------------------------------------------
@pytest.mark.parametrize("axes", ["LBNHC", "LBHNC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"])
@pytest.mark.parametrize("model", ["full", "gemma", "mla", "mla and indexer", "jamba", "whisper"])
def test_a_plan_of_one_backing_allocation_passes_the_proof_under_its_axes(model, axes) -> None:
    """vLLM 0.33's plans carry strides of their own; where it makes one, the proof must pass."""
    config = MODELS[model]
    cached = [
        CacheLayer(name=name, spec=group.layer_spec(name))
        for group in config.groups
        for name in group.layer_names
    ]
    if model == "mla and indexer" and axes in ("LHBNC", "BHLNC"):
        with pytest.raises(ConfigError, match="blocks outermost, then layers"):
            plan(cached, LIMITS, 40 * 1024, rules=VLLM_0_33, kv_cache_layout=axes, compared=())
        return
    made = plan(cached, LIMITS, 40 * 1024, rules=VLLM_0_33, kv_cache_layout=axes, compared=())
    theirs = made.ranks[0].config
    assert len(theirs.tensors) == 1
    bound = bind(theirs, placement=axes.lower())
    assert bound.verify.mismatches == 0 and bound.verify.rows > 0
    assert bind(theirs, "swap", placement=axes.lower()).verify.mismatches > 0


# --- every shipped model ---------------------------------------------------------------------
SHIPPED = sorted(path.stem for path in (CONF_DIR / "model").glob("*.yaml") if path.stem != "hf")


@pytest.mark.parametrize(
    "model", [m if m == "gemma3_27b" else pytest.param(m, marks=pytest.mark.full) for m in SHIPPED]
)
def test_every_shipped_model_passes_the_proof_and_shows_every_fault(model: str) -> None:
    """gemma3_27b on each commit: its first two layers alike lie on the same bytes."""
    request = [f"model={model}", "backend=torch", "binding.verify.max_rows=48"]
    if model == "nemotron_h_56b_base_8k":  # whose states alone take more than a laptop's share
        request += ["cache.kv_cache_memory_bytes=2GiB", "scheduler.max_model_len=auto"]
    report = kvpipe.run(request).bound[0].verify
    if model == "longformer":  # encoder-only layers keep nothing
        assert report.reason == "nothing to store, or no request fits"
        return
    assert report.passed and report.rows == report.gathered_rows > 0
    for inject in ("swap", "lost", "alias"):
        faulty = kvpipe.run([*request, f"binding.verify.inject={inject}"]).bound[0].verify
        assert faulty.mismatches > 0, inject
