"""What a model needs, what a plan must hold for it, and what really lies in the pages."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from equality import (
    BLOCK_SIZE,
    LENGTHS,
    NEW_TOKENS,
    SHORT,
    assert_equal,
    generate,
    max_difference,
    planned,
    reference,
    short_output,
)
from test_equality import first_of, tiers
from tiny_models import FAMILIES, WINDOW, build, prompts

import kvpipe
from kvpipe.backends.host import HostBackend
from kvpipe.errors import ConfigError
from kvpipe.integrations.transformers import bind, layers_of
from kvpipe.plugins import SPECS
from kvpipe.specs.base import RequestLimits

STORED = max(LENGTHS) + NEW_TOKENS - 1  # columns: the last token that is chosen is never stored


# --- needs ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", tiers(FAMILIES))
def test_a_config_needs_what_its_model_needs(family: str) -> None:
    """Asked on the meta device, without weights."""
    model = reference(family).model
    assert layers_of(model.config, 8) == layers_of(model, 8)


def test_layers_carry_the_engines_own_words() -> None:
    def found(family: str) -> list[tuple[str, str]]:
        layers = layers_of(build(family), 16)
        return [(layer.name.split("layers.")[1], layer.spec.kind) for layer in layers]

    assert found("gemma3")[4:] == [("4.self_attn.attn", "sliding"), ("5.self_attn.attn", "full")]
    assert found("llama4")[2:] == [("2.self_attn.attn", "chunked"), ("3.self_attn.attn", "full")]
    assert found("falcon_h1")[:2] == [("0.self_attn.attn", "full"), ("0.mixer", "mamba")]
    assert found("nemotron_h")[-1] == ("3.mixer", "mamba")  # layer 2 is an MLP and stores nothing
    assert found("bart")[:2] == [("0.self_attn.attn", "full"), ("0.encoder_attn.attn", "cross")]
    (latent, *_) = layers_of(build("deepseek_v3"), 16)
    assert latent.spec.page_arrays()[0].width == 16 + 8  # the latent and its rope part in one row


def test_layers_that_reuse_another_name_it() -> None:
    shared = {e.name: e.shares_with for e in layers_of(build("gemma3n"), 8) if e.shares_with}
    assert shared == {
        "model.layers.4.self_attn.attn": "model.layers.3.self_attn.attn",  # sliding
        "model.layers.5.self_attn.attn": "model.layers.2.self_attn.attn",  # full
    }


def test_a_model_that_generates_no_text_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match="a config of a model that generates text"):
        layers_of(transformers.ViTConfig(), 16)


# --- plans that do not fit -----------------------------------------------------------------------
def test_the_plan_of_another_model_is_refused_layer_by_layer() -> None:
    one, other = reference("llama").model, build("llama", num_key_value_heads=4)
    with pytest.raises(ConfigError, match=r"2 heads of 8 \+ 8, got 4 heads of 8 \+ 8") as raised:
        bind(one, planned(other, "llama"))
    assert len(raised.value.problems) == 4
    deeper = build("llama", num_hidden_layers=5)
    with pytest.raises(ConfigError, match=r"layer 4 \(attention\): expected a cache in the plan"):
        bind(deeper, planned(one, "llama"))


def test_a_plan_that_forgets_too_early_is_refused() -> None:
    model = reference("mistral").model
    layers = [
        replace(e, spec=replace(e.spec, sliding_window=WINDOW - 9)) for e in layers_of(model, 8)
    ]
    plan = kvpipe.plan(layers, RequestLimits(max_model_len=256, max_num_batched_tokens=64), 1 << 20)
    with pytest.raises(ConfigError, match=f"the last {WINDOW} tokens, got the last"):
        bind(model, plan)


def test_a_plan_that_keeps_more_is_taken() -> None:
    """A window planned as full attention: more bytes, the same text."""
    case = reference("mistral")
    layers = [
        replace(e, spec=SPECS.get("full").what_if(e.spec, {})) for e in layers_of(case.model, 8)
    ]
    plan = kvpipe.plan(
        layers, RequestLimits(max_model_len=256, max_num_batched_tokens=256), 4 << 20
    )
    cache = bind(case.model, plan)
    assert_equal(short_output("mistral"), generate(case.model, case.inputs, cache, **SHORT))
    cache.bound.unbind()


def test_a_mode_that_the_model_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="falcon|AttentionInterface"):
        bind(reference("falcon").model, planned(reference("falcon").model, "falcon"), mode="direct")
    with pytest.raises(ConfigError, match="one of gather, direct, auto, got 'paged'"):
        bind(reference("llama").model, planned(reference("llama").model, "llama"), mode="paged")


def test_prefix_caching_needs_groups_that_can_serve_one() -> None:
    model = reference("jamba").model
    with pytest.raises(ConfigError, match="groups that can all serve a prefix, got a group of"):
        bind(model, planned(model, "jamba"), prefix_caching=True)


# --- what lies in the pages ----------------------------------------------------------------------
@pytest.mark.parametrize("family", first_of(["jamba", "llama", "mistral", "t5"]))
@pytest.mark.parametrize("mode", first_of(["gather", "direct"]))
def test_nothing_is_read_that_was_not_written(family: str, mode: str) -> None:
    """Every page full of NaN before: one read too many would poison the text."""
    case = reference(family)
    cache = bind(case.model, planned(case.model, family), mode=mode, shuffle=4)
    for buffer in cache.bound.buffers.buffers:
        buffer.data.fill_(0xFF)
    assert_equal(short_output(family), generate(case.model, case.inputs, cache, **SHORT))
    cache.bound.unbind()


def test_padding_is_stored_nowhere() -> None:
    """Slots that hold numbers are as many as real tokens, and blocks as few as they can be."""
    case = reference("llama")
    cache = bind(case.model, planned(case.model, "llama"))
    for buffer in cache.bound.buffers.buffers:
        buffer.data.fill_(0xFF)
    generate(case.model, case.inputs, cache)
    tokens = [STORED - (max(LENGTHS) - length) for length in LENGTHS]
    for name in ("model.layers.0.self_attn.attn", "model.layers.3.self_attn.attn"):
        for pages in cache.bound.buffers.arrays(name).values():
            written = ~pages[..., 0].isnan()  # [B, N, H]
            assert int(written[..., 0].sum()) == sum(tokens)
    assert cache.store.blocks_held() == sum(math.ceil(n / BLOCK_SIZE) for n in tokens)
    cache.bound.unbind()


def test_window_pages_are_given_back() -> None:
    case = reference("mistral")
    cache = bind(case.model, planned(case.model, "mistral"))
    generate(case.model, case.inputs, cache)
    per_row = math.ceil(WINDOW / BLOCK_SIZE) + 1
    assert cache.store.blocks_held() <= len(LENGTHS) * per_row
    assert cache.store.peak_blocks > cache.store.blocks_held()
    cache.reset()
    assert cache.bytes_held == 0 and cache.get_seq_length() == 0
    cache.bound.unbind()


@pytest.mark.parametrize("lengths", [(20, 20, 20), (20, 9, 13)])
def test_states_are_aliased_or_written_back(lengths: tuple[int, ...]) -> None:
    """Rows of one length have blocks at one distance: the model updates the pages themselves. The
    others get a copy, and the page holds the same numbers after the pass."""
    model, inputs = reference("mamba2").model, prompts(lengths)
    own = generate(model, inputs, max_new_tokens=6, min_new_tokens=6)
    ragged = len(set(lengths)) > 1
    cache = bind(model, planned(model, "mamba2"), shuffle=5 if ragged else None)
    seen: list[Any] = []
    handle = model.backbone.layers[1].register_forward_hook(
        lambda *_: seen.append(cache.layers[1].recurrent_states[0])
    )
    found = generate(model, inputs, cache, max_new_tokens=6, min_new_tokens=6)
    handle.remove()
    cache.bound.unbind()
    assert max_difference(own, found) == 0.0
    pages = cache.bound.buffers.arrays("model.layers.1.mixer")["ssm"]
    blocks = cache.store.state_blocks(cache.layers[1].conv_states.group)
    aliased = seen[-1].untyped_storage().data_ptr() == pages.untyped_storage().data_ptr()
    assert aliased != ragged
    assert torch.equal(pages[blocks], seen[-1])


def test_pages_of_the_compiled_kernels_hold_the_same() -> None:
    """The raw CUDA kernels, compiled for the host, write and gather for a real model."""
    if problems := HostBackend.problems():
        pytest.skip(str(problems[0]))
    case = reference("llama")
    cache = bind(case.model, planned(case.model, "llama"), backend=HostBackend(), shuffle=2)
    found = generate(case.model, case.inputs, cache, **SHORT)
    cache.bound.buffers.backend.check()
    cache.bound.unbind()
    assert max_difference(short_output("llama"), found) == 0.0


# --- memory --------------------------------------------------------------------------------------
LEAST_SAVED = {"llama": 2.4, "deepseek_v3": 2.4, "gemma3": 1.5}


@pytest.fixture(scope="module")
def measure() -> Any:
    """benchmarks/transformers_memory.py's own measurement."""
    from runpy import run_path

    return run_path(str(Path(__file__).parents[2] / "benchmarks/transformers_memory.py"))["measure"]


@pytest.mark.full
@pytest.mark.parametrize("family", LEAST_SAVED)
def test_a_skewed_batch_holds_less_than_its_padding_would(family: str, measure: Any) -> None:
    found = measure(family)
    assert found["equal"]
    assert found["dynamic"] > LEAST_SAVED[family] * found["paged"]


@pytest.mark.full
def test_a_window_of_about_a_block_does_not_save(measure: Any) -> None:
    """Rounding to blocks costs more than padding: no saving is claimed there."""
    found = measure("mistral")
    assert found["equal"]
    assert found["dynamic"] < found["paged"]


# --- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", ["5.22.1", "5.25.0", "4.57.3"])
def test_other_releases_are_named(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr("kvpipe.models.probe.releases.version", lambda _: found)
    with pytest.raises(ConfigError, match=f"transformers>=5.23,<5.25, got transformers {found}"):
        layers_of(object(), 16)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("kvpipe.models.probe.releases.version", missing)
    with pytest.raises(ConfigError, match=r"got no transformers; pip install 'kvpipe\[hf\]'"):
        layers_of(object(), 16)


def test_a_third_tensor_a_token_is_not_silently_dropped() -> None:
    """The key cache of a sparse-attention indexer has no place in a transformers K/V layer."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, n_group=1,
        topk_group=1, num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=2,
        index_n_heads=2, index_head_dim=16, index_topk=8, pad_token_id=0,
    )  # fmt: skip
    model = transformers.DeepseekV32ForCausalLM(transformers.DeepseekV32Config(**sizes)).eval()
    with pytest.raises(ConfigError, match="fixed-size states, got indexer_keys of 16 numbers"):
        layers_of(model, 16)


def test_states_at_block_boundaries_are_refused() -> None:
    model = reference("jamba").model
    plan = planned(model, "jamba")
    limits = replace(plan.limits, mamba_cache_mode="align")
    with pytest.raises(ConfigError, match=r"one running state \(mode none\), got mode align"):
        bind(model, replace(plan, limits=limits))
