"""model.probe=true finds what transformers caches, and tells it as an engine stores it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from model_facts import configs, models, recorded_layers, stored_layers

import kvpipe.models.probe
from kvpipe.errors import ConfigError
from kvpipe.models.config_file import ConfigFile, parse_config
from kvpipe.models.hf import PLUGIN
from kvpipe.models.probe.as_engine import probe, probed_model
from kvpipe.models.probe.needs import KVNeed, LayerNeeds
from kvpipe.models.reading import read_geometry

CERTAIN = sorted(name for name, entry in models().items() if entry["certain"])
# The quickest of each kind of cache; the others are of the full tier.
ON_EACH_COMMIT = {
    "full": "meta-llama/Llama-3.2-1B",
    "sliding": "microsoft/Phi-3-mini-4k-instruct",
    "chunked": "meta-llama/Llama-4-Scout-17B-16E (text)",
    "shared": "google/gemma-3n-E4B (text)",
    "latent": "deepseek-ai/DeepSeek-V2-Lite",
    "state": "state-spaces/mamba-130m-hf",
    "hybrid": "ai21labs/Jamba-v0.1",
    "cross": "openai/whisper-tiny",
}
QUICK = set(ON_EACH_COMMIT.values())
SLOWER = {ON_EACH_COMMIT["hybrid"], ON_EACH_COMMIT["shared"]}  # seconds each: of the full tier
MODELS = [
    pytest.param(name, marks=() if name in QUICK - SLOWER else pytest.mark.full) for name in CERTAIN
]


def file_of(name: str) -> ConfigFile:
    return parse_config(json.dumps(configs()[models()[name]["config"]]), "config.json", name, None)


def words(needs: tuple[LayerNeeds, ...], cross: bool = False) -> dict[int, set[str]]:
    """What transformers keeps in each layer, in the words of the records."""
    found: dict[int, set[str]] = {}
    for need in needs:
        kv = need.cross if cross else need.attention
        if kv:
            found.setdefault(need.index, set()).add(words_of(kv))
        if need.states and not cross:
            shapes = [tuple(state.shape) for state in need.states]
            found.setdefault(need.index, set()).add(f"state {shapes}")
    return found


def words_of(kv: KVNeed) -> str:
    kind = "full" if not kv.window else "chunked" if kv.chunked else "sliding"
    window = f" {kv.window}" if kv.window else ""
    return f"{kind} {kv.num_heads}x{kv.head_size}/{kv.head_size_v}{window}"


def recorded_cache(groups: list[dict[str, Any]]) -> dict[int, set[str]]:
    stored = [group for group in groups if group["kind"] != "none"]
    return recorded_layers({"engine_specs": stored})


def test_a_model_of_each_kind_is_probed_most_of_them_on_each_commit() -> None:
    assert set(CERTAIN) >= QUICK and len(QUICK - SLOWER) == 6


@pytest.mark.parametrize("name", MODELS)
def test_the_probe_sees_what_transformers_caches_and_says_what_an_engine_stores(name: str) -> None:
    pytest.importorskip("transformers", reason="needs transformers and torch")
    entry, file = models()[name], file_of(name)
    probed = probed_model(file)
    assert words(probed.needs) == recorded_cache(entry["transformers_cache"])
    if "transformers_cross_cache" in entry:
        assert words(probed.needs, cross=True) == recorded_cache(entry["transformers_cross_cache"])
    assert probed.parameter_count == entry["parameter_count_meta"]
    geometry = probe(file)
    assert stored_layers(geometry) == recorded_layers(entry)


def test_probe_and_reader_differ_for_exactly_the_recorded_models() -> None:
    """Told without building anything: the records say where and how the two differ."""
    for name in CERTAIN:
        entry = models()[name]
        same = recorded_cache(entry["transformers_cache"]) == recorded_layers(entry)
        assert ("engine_differs" not in entry) == same or _only_says_that_layers_are_none(entry)


def _only_says_that_layers_are_none(entry: dict[str, Any]) -> bool:
    return entry["engine_differs"] == ["layers of kind none store nothing and have no engine spec"]


@pytest.mark.full
def test_the_probe_and_the_reader_agree_on_everything_the_pipeline_uses() -> None:
    pytest.importorskip("transformers", reason="needs transformers and torch")
    for name in ("google/gemma-3n-E4B (text)", "openai/whisper-tiny"):
        by_probe, by_reader = probe(file_of(name)), read_geometry(file_of(name))
        for field in ("context_length", "num_layers", "hidden_size", "vocab_size", "file_dtype"):
            assert getattr(by_probe, field) == getattr(by_reader, field), field
        assert by_probe.encoder_tokens == by_reader.encoder_tokens
        shares = [[c.shares_with for c in model.caches] for model in (by_probe, by_reader)]
        assert shares[0] == shares[1]


def read(folder: Path, raw: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(raw))
    sections = {"reader": "hf", "dtype": "auto", "repo": None, "draft": None}
    return PLUGIN(PLUGIN.Options(path=str(folder), probe=True, **sections)).read()


def test_a_family_that_no_reader_knows_can_be_probed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="needs transformers and torch")
    monkeypatch.setattr("kvpipe.models.probe.as_engine.families", dict)
    raw = {
        "model_type": "stablelm",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "dtype": "bfloat16",
    }
    model = read(tmp_path, raw)
    assert [(c.spec, c.fields) for c in model.caches] == [
        ("full", {"num_kv_heads": 2, "head_size": 16})
    ] * 2
    assert (model.context_length, model.source) == (4096, "probe of transformers")


# Keys that classes honour or ignore, and kinds of which no published model is recorded.
VARIATIONS: dict[str, dict[str, Any]] = {
    "bert": {"num_hidden_layers": 2},
    "cohere2": {"num_hidden_layers": 2, "attention_bias": True, "use_qk_norm": True},
    "deepseek_v3": {"num_hidden_layers": 4, "attention_bias": True},
    "deepseek_v32": {"num_hidden_layers": 4},
    "falcon": {"multi_query": False, "parallel_attn": False, "bias": True},
    "falcon_h1": {"num_hidden_layers": 2, "mamba_proj_bias": True, "mamba_rms_norm": True},
    "falcon_mamba": {"num_hidden_layers": 2, "use_bias": True},
    "gemma3n_text": {"attention_bias": True},
    "gpt_bigcode": {"num_hidden_layers": 2},
    "lfm2": {"num_hidden_layers": 2, "full_attn_idxs": [1], "conv_bias": True},
    "llama": {"num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True},
    "mistral": {"num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True},
    "nemotron_h": {"hybrid_override_pattern": "M*E-", "use_bias": True, "mlp_bias": True},
    "phi": {"num_hidden_layers": 2, "qk_layernorm": True},
    "qwen2_moe": {"num_hidden_layers": 2, "decoder_sparse_step": 2, "qkv_bias": True},
    "qwen3_moe": {"num_hidden_layers": 2, "mlp_only_layers": [0], "attention_bias": True},
    "roberta": {"num_hidden_layers": 2},
    "t5": {"num_decoder_layers": 3, "feed_forward_proj": "gated-gelu"},
}


@pytest.mark.full
@pytest.mark.parametrize("model_type", VARIATIONS)
def test_reader_and_class_take_the_same_keys_in_the_same_way(model_type: str) -> None:
    pytest.importorskip("transformers", reason="needs transformers and torch")
    raw = {"model_type": model_type, "dtype": "bfloat16", **VARIATIONS[model_type]}
    file = parse_config(json.dumps(raw), "config.json", model_type, None)
    built, read_here = probe(file), read_geometry(file)
    assert stored_layers(read_here) == stored_layers(built)
    assert read_here.parameter_count == built.parameter_count


@pytest.mark.full
def test_an_encoder_asked_as_a_decoder_stores_nothing() -> None:
    pytest.importorskip("transformers", reason="needs transformers and torch")
    model = probe(parse_config('{"model_type": "bert", "num_hidden_layers": 2}', "f", "bert", None))
    assert [cache.spec for cache in model.caches] == ["encoder_only"] * 2


def test_a_type_that_transformers_does_not_know_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers and torch")
    with pytest.raises(ConfigError, match="model.probe: expected a model of type 'nonsuch'"):
        read(tmp_path, {"model_type": "nonsuch"})


def test_without_transformers_the_probe_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kvpipe.models.probe.build", raising=False)
    monkeypatch.delattr(kvpipe.models.probe, "build", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="got no transformers; pip install 'kvpipe"):
        read(tmp_path, {"model_type": "llama"})
