"""A config.json is read as its class would read it, without torch and without guessing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from model_facts import configs, logical_bytes, models, recorded_layers, stored_layers

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.families import families
from kvpipe.models.hf import PLUGIN
from kvpipe.models.hub import fetch_config, fetch_tensor_table
from kvpipe.models.parameters import rank_parameters
from kvpipe.models.preset import Preset
from kvpipe.models.weight import Ranks
from kvpipe.request.confdir import shipped_option
from kvpipe.stages.validation.layers import as_released

CERTAIN = sorted(name for name, entry in models().items() if entry["certain"])


def read(folder: Path, raw: dict[str, Any], **options: Any) -> ModelGeometry:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    return read_place(path=str(folder), **options)


def read_place(**options: Any) -> ModelGeometry:
    defaults = {"reader": "hf", "dtype": "auto", "path": None, "repo": None}
    more = {"probe": False, "draft": None}
    return PLUGIN(PLUGIN.Options(**(defaults | more | options))).read()


@pytest.fixture(autouse=True)
def _another_hub() -> None:
    """A process asks for a repository once; each test has its own Hub."""
    fetch_config.cache_clear()
    fetch_tensor_table.cache_clear()


def published(name: str) -> dict[str, Any]:
    return dict(configs()[models()[name]["config"]])


def kinds(model: ModelGeometry) -> list[str]:
    return [cache.spec for cache in model.caches]


def windows(model: ModelGeometry) -> list[int | None]:
    return [cache.fields.get("sliding_window") for cache in model.caches]


# --- every recorded model --------------------------------------------------------------------
def test_every_recorded_model_type_is_read() -> None:
    assert {entry["model_type"] for entry in models().values()} <= set(families())
    assert len(CERTAIN) >= 80


@pytest.mark.parametrize("name", CERTAIN)
def test_a_published_file_gives_what_an_engine_stores_and_every_parameter(
    name: str, tmp_path: Path
) -> None:
    entry, model = models()[name], read(tmp_path, published(name))
    assert stored_layers(model) == recorded_layers(entry)
    assert model.parameter_count == entry["parameter_count"]
    assert model.file_dtype == entry["torch_dtype"]
    assert model.num_layers == entry["num_layers"]
    if entry.get("max_position_embeddings"):
        assert model.context_length == entry["max_position_embeddings"]
    if entry.get("intermediate_size"):
        assert model.intermediate_size == entry["intermediate_size"]


BYTES_AT_32K = {
    "meta-llama/Llama-3.1-8B": 4_294_967_296,
    "meta-llama/Llama-3.1-70B": 10_737_418_240,
    "Qwen/Qwen3-32B": 8_589_934_592,
    "google/gemma-3-27b-it (text)": 3_120_562_176,
    "deepseek-ai/DeepSeek-V3": 2_302_672_896,
    "openai/gpt-oss-20b": 808_452_096,
    "state-spaces/mamba-2.8b-hf": 12_451_840,
    "ai21labs/Jamba-v0.1": 545_587_200,
    "mistralai/Mistral-7B-v0.1": 536_870_912,
    "meta-llama/Llama-4-Scout-17B-16E (text)": 2_818_572_288,
    "google/gemma-3n-E4B (text)": 285_212_672,
    "openai/whisper-large-v3": 319_160_320,
}


@pytest.mark.parametrize("name", BYTES_AT_32K)
def test_bytes_of_a_long_request_are_exact(name: str, tmp_path: Path) -> None:
    assert logical_bytes(read(tmp_path, published(name)), 32_768) == BYTES_AT_32K[name]


def test_bytes_of_qwen3_next_are_exact_with_a_float32_recurrent_state(tmp_path: Path) -> None:
    model = read(tmp_path, published("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    assert logical_bytes(model, 32_768, ssm_bytes=4) == 882_573_312


def test_reading_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published("ai21labs/Jamba-v0.1")))
    script = (
        "import sys; from kvpipe.models.hf import PLUGIN as P;"
        f"P(P.Options(reader='hf', dtype='auto', path={str(tmp_path)!r}, repo=None,"
        " probe=False, draft=None)).read();"
        "print({'torch', 'transformers', 'numpy', 'huggingface_hub'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


# --- what files leave out, and what they do not mean ---------------------------------------------
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def small(model_type: str, **changes: Any) -> dict[str, Any]:
    return {**LLAMA, "model_type": model_type, **changes}


def without(raw: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in keys}


def test_a_missing_mistral_window_slides_and_a_null_one_does_not(tmp_path: Path) -> None:
    raw = small("mistral", max_position_embeddings=32768)
    assert windows(read(tmp_path, raw)) == [4096, 4096]
    assert kinds(read(tmp_path, raw | {"sliding_window": None})) == ["full", "full"]


def test_a_missing_number_of_kv_heads_is_8_for_mistral_and_all_for_llama(tmp_path: Path) -> None:
    raw = without(small("mistral", num_attention_heads=64), "num_key_value_heads")
    assert read(tmp_path, raw).caches[0].fields["num_kv_heads"] == 8
    assert read(tmp_path, raw | {"model_type": "llama"}).caches[0].fields["num_kv_heads"] == 64


@pytest.mark.parametrize("window", [4096, 262144])
def test_a_window_at_or_above_the_context_is_full_attention(window: int, tmp_path: Path) -> None:
    assert kinds(read(tmp_path, small("phi3", sliding_window=window))) == ["full", "full"]
    assert windows(read(tmp_path, small("phi3", sliding_window=4095))) == [4095, 4095]


def test_qwen2_has_no_window_unless_it_is_switched_on(tmp_path: Path) -> None:
    raw = small("qwen2", sliding_window=1024, max_window_layers=1)
    assert kinds(read(tmp_path, raw)) == ["full", "full"]
    assert windows(read(tmp_path, raw | {"use_sliding_window": True})) == [None, 1024]
    late = raw | {"use_sliding_window": True, "max_window_layers": 28}
    assert kinds(read(tmp_path, late)) == ["full", "full"]


def test_a_window_of_0_is_off(tmp_path: Path) -> None:
    raw = small("qwen2_moe", sliding_window=0, use_sliding_window=True, max_window_layers=0)
    assert kinds(read(tmp_path, raw)) == ["full", "full"]


def test_windows_that_a_llamas_file_lists_are_obeyed_as_the_cache_of_transformers_does(
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    raw = small("llama", sliding_window=4, layer_types=["full_attention", "sliding_attention"])
    made = transformers.DynamicCache(config=transformers.AutoConfig.for_model(**raw))
    assert [layer.is_sliding for layer in made.layers] == [False, True]
    assert windows(read(tmp_path, raw)) == [None, 4]


def test_gemma_3_without_layer_types_has_five_windows_to_a_full_layer(tmp_path: Path) -> None:
    raw = small("gemma3_text", num_hidden_layers=8, sliding_window=512)
    sliding, full = 512, None
    expected = [sliding] * 5 + [full] + [sliding] * 2
    assert windows(read(tmp_path, raw)) == expected
    other = read(tmp_path, raw | {"sliding_window_pattern": 3})
    assert windows(other) == [sliding, sliding, full] * 2 + [sliding] * 2
    listed = raw | {"layer_types": ["full_attention"] * 7 + ["sliding_attention"]}
    assert windows(read(tmp_path, listed)) == [full] * 7 + [sliding]


def test_a_nested_text_config_supplies_its_own_class_defaults(tmp_path: Path) -> None:
    """Gemma-3-4B as published: heads, head size and vocabulary are not in the file."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    text |= {"model_type": "gemma3_text", "sliding_window": 1024}
    raw = {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}
    model = read(tmp_path, raw | {"vision_config": {"hidden_size": 1152}})
    entry = models()["google/gemma-3-4b-it (text)"]
    assert stored_layers(model) == recorded_layers(entry)
    assert model.parameter_count == entry["parameter_count"]
    assert any("other towers are not counted" in note for note in model.notes)


def test_a_nested_text_config_without_a_model_type_is_the_outer_ones_text(tmp_path: Path) -> None:
    raw = {"model_type": "llama4", "text_config": without(LLAMA, "model_type")}
    model = read(tmp_path, raw | {"dtype": "bfloat16"})
    assert kinds(model) == ["full", "full"]  # chunks of 8,192 span the context of 4,096
    assert model.file_dtype == "bfloat16"


def test_llama_4_with_an_empty_rope_list_keeps_every_fourth_layer_full(tmp_path: Path) -> None:
    raw = small("llama4_text", num_hidden_layers=5, max_position_embeddings=32768)
    for no_rope in ([], None):
        model = read(tmp_path, raw | {"no_rope_layers": no_rope})
        assert kinds(model) == ["chunked", "chunked", "chunked", "full", "chunked"]
    listed = read(tmp_path, raw | {"no_rope_layers": [1, 0, 1, 0, 0]})
    assert kinds(listed) == ["chunked", "full", "chunked", "full", "full"]
    assert kinds(read(tmp_path, raw | {"attention_chunk_size": None})) == ["full"] * 5


def test_the_head_size_of_qwen3_and_gpt_oss_is_not_hidden_size_over_heads(tmp_path: Path) -> None:
    for model_type, size in (("qwen3", 128), ("gpt_oss", 64), ("gemma2", 256), ("glm", 128)):
        raw = without(small(model_type, hidden_size=640), "head_dim")
        assert read(tmp_path, raw).caches[0].fields["head_size"] == size
    raw = without(small("phi3", hidden_size=640), "head_dim") | {"head_dim": None}
    assert read(tmp_path, raw).caches[0].fields["head_size"] == 160


def test_deepseeks_head_dim_and_kv_heads_do_not_describe_its_cache(tmp_path: Path) -> None:
    raw = published("deepseek-ai/DeepSeek-V3") | {"head_dim": 64, "num_key_value_heads": 128}
    assert read(tmp_path, raw).caches[0].fields == {"head_size": 576}


def test_an_indexer_has_a_cache_of_its_own_beside_the_latent_row(tmp_path: Path) -> None:
    raw = published("deepseek-ai/DeepSeek-V3") | {"model_type": "deepseek_v32"}
    model = read(tmp_path, raw)
    assert [c.name for c in model.caches[:2]] == [
        "model.layers.0.self_attn.attn",
        "model.layers.0.self_attn.indexer.k_cache",
    ]
    assert model.caches[1].fields == {"head_size": 132, "dtype": "uint8"}


def test_falcons_kv_heads_follow_its_architecture_not_one_key(tmp_path: Path) -> None:
    raw = {"model_type": "falcon", "num_hidden_layers": 1}  # 7B: the object would say 71
    assert read(tmp_path, raw | {"num_kv_heads": 71}).caches[0].fields["num_kv_heads"] == 1
    every = read(tmp_path, raw | {"multi_query": False})
    assert every.caches[0].fields["num_kv_heads"] == 71
    new = {"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64}
    assert read(tmp_path, raw | new).caches[0].fields["num_kv_heads"] == 8


def test_falcon_7b_and_starcoder_have_their_published_number_of_parameters(tmp_path: Path) -> None:
    assert read(tmp_path, {"model_type": "falcon"}).parameter_count == 6_921_720_704
    starcoder = {
        "model_type": "gpt_bigcode",
        "n_embd": 6144,
        "n_head": 48,
        "n_inner": 24576,
        "n_layer": 40,
        "n_positions": 8192,
        "vocab_size": 49152,
    }
    assert read(tmp_path, starcoder).parameter_count == 15_517_456_384


def test_whispers_layers_are_the_decoders(tmp_path: Path) -> None:
    turbo = published("openai/whisper-large-v3") | {"decoder_layers": 4, "num_hidden_layers": 32}
    model = read(tmp_path, turbo)
    assert (model.num_layers, kinds(model)) == (4, ["full", "cross"] * 4)
    assert (model.context_length, model.encoder_tokens) == (448, 1500)


def test_t5_may_decode_with_another_number_of_layers_than_it_encodes(tmp_path: Path) -> None:
    raw = {"model_type": "t5", "num_layers": 2}
    assert read(tmp_path, raw).num_layers == 2
    model = read(tmp_path, raw | {"num_decoder_layers": 6, "d_kv": 128})
    assert (model.num_layers, len(model.caches)) == (6, 12)
    assert model.caches[0].fields == {"num_kv_heads": 8, "head_size": 128}


def test_the_last_layers_of_gemma_3n_read_the_last_cache_of_their_type(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"] * 3
    raw = small("gemma3n_text", num_hidden_layers=6, num_kv_shared_layers=3, layer_types=types)
    shares = [cache.shares_with for cache in read(tmp_path, raw).caches]
    two, one = "model.layers.2.self_attn.attn", "model.layers.1.self_attn.attn"
    assert shares == [None, None, None, one, two, one]


def test_a_hybrid_layer_has_a_state_and_kv_and_an_mlp_layer_has_neither(tmp_path: Path) -> None:
    nemotron = {"model_type": "nemotron_h", "hybrid_override_pattern": "M-*E"}
    model = read(tmp_path, nemotron)
    assert [(c.layer, c.spec) for c in model.caches] == [(0, "mamba"), (2, "full")]
    assert (model.num_layers, model.ssm_dtype) == (4, "float32")
    falcon = read(tmp_path, small("falcon_h1"))
    assert [(c.layer, c.spec) for c in falcon.caches] == [
        (0, "full"),
        (0, "mamba"),
        (1, "full"),
        (1, "mamba"),
    ]


# The sizes that NVIDIA published; parameters of transformers 5.24's class on the meta device.
NEMOTRON_3 = {
    "model_type": "nemotron_h", "head_dim": 128, "num_key_value_heads": 2, "n_groups": 8,
    "mamba_head_dim": 64, "ssm_state_size": 128, "n_routed_experts": 512, "vocab_size": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip
SUPER = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
SUPER_SIZES = {
    "hybrid_override_pattern": SUPER, "num_hidden_layers": 88, "hidden_size": 4096,
    "moe_intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376,
    "mamba_num_heads": 128, "num_attention_heads": 32,
}  # fmt: skip


def test_experts_in_a_narrower_space_are_counted_in_it(tmp_path: Path) -> None:
    """Nemotron 3 Super: 458.6e9 parameters if its experts were as wide as its layers."""
    model = read(tmp_path, NEMOTRON_3 | SUPER_SIZES | {"moe_latent_size": 1024})
    assert model.parameter_count == 120_668_687_360


def test_a_file_that_lists_its_layers_need_not_number_them(tmp_path: Path) -> None:
    """Nemotron 3 Ultra has no num_hidden_layers; where a file has both, they agree."""
    kinds = ["mamba", "moe", "attention", "moe", "mamba"]
    model = read(tmp_path, NEMOTRON_3 | {"layers_block_type": kinds})
    assert (model.num_layers, [c.layer for c in model.caches]) == (5, [0, 2, 4])
    assert not any("num_hidden_layers" in note for note in model.notes)
    both = NEMOTRON_3 | {"layers_block_type": kinds, "num_hidden_layers": 6}
    with pytest.raises(ConfigError, match="6 entries"):
        read(tmp_path, both)


def test_zamba_2s_shared_block_comes_before_the_states_by_the_engines_names(
    tmp_path: Path,
) -> None:
    kinds = ["mamba", "hybrid"] * 3
    raw = {"num_hidden_layers": 6, "layers_block_type": kinds, "hybrid_layer_ids": [1, 3, 5]}
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_head_dim": 64}
    file = {"model_type": "zamba2", **raw, **sizes}
    assert [(c.name, c.layer) for c in read(tmp_path, file).caches] == [
        *((f"model.attn.{number}", layer) for number, layer in enumerate((1, 3, 5))),
        *((f"{layer + 3}.mixer", layer) for layer in range(6)),
    ]


def test_a_state_dtype_in_the_file_is_reported(tmp_path: Path) -> None:
    raw = published("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert read(tmp_path, raw).ssm_dtype is None
    assert read(tmp_path, raw | {"mamba_ssm_dtype": "float32"}).ssm_dtype == "float32"
    nemotron = published("nvidia/Nemotron-H-8B-Base-8K") | {"mamba_ssm_cache_dtype": "bfloat16"}
    assert read(tmp_path, nemotron).ssm_dtype == "bfloat16"


def test_a_short_convolution_is_a_state_of_kernel_minus_one_columns(tmp_path: Path) -> None:
    raw = small("lfm2", num_hidden_layers=2, full_attn_idxs=[1], conv_L_cache=3)
    conv = read(tmp_path, raw).caches[0]
    assert conv.name == "model.layers.0.short_conv"
    assert conv.fields["states"] == [{"name": "conv", "shape": [256, 2]}]


# What vLLM 0.33's own ModelConfig said of such files; 0.28 multiplies (read in both).
@pytest.mark.parametrize(
    ("release", "context"), [("", 131072), ("0.28.0", 131072), ("0.33.0", 32768)]
)
def test_yarn_stretches_the_context_as_the_planned_release_reads_it(
    release: str, context: int, tmp_path: Path
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    model = read(tmp_path, small("qwen2", max_position_embeddings=32768, rope_scaling=yarn))
    assert as_released(model, release).context_length == context
    assert any("which yarn stretches to 131,072" in note for note in model.notes)
    counted = read(tmp_path, small("qwen2", max_position_embeddings=131072, rope_scaling=yarn))
    assert as_released(counted, release).context_length == 131072
    assert not any("yarn" in note for note in counted.notes)


def test_stretched_rope_counts_in_the_context_once(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    raw = small("qwen2", max_position_embeddings=32768, rope_scaling=yarn)
    assert read(tmp_path, raw).context_length == 131072
    assert read(tmp_path, raw | {"max_position_embeddings": 131072}).context_length == 131072
    default = {"rope_scaling": {"rope_type": "default"}, "max_position_embeddings": 512}
    assert read(tmp_path, small("gpt_oss", **default)).context_length == 512
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert read(tmp_path, small("llama", rope_scaling=llama3)).context_length == 4096


def test_a_missing_dtype_is_the_classes_float32_and_the_report_can_say_so(tmp_path: Path) -> None:
    model = read(tmp_path, without(LLAMA, "torch_dtype"))
    assert model.file_dtype == "float32"
    assert any("names no dtype" in note for note in model.notes)


# --- refused, by name ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (small("lama"), "got 'lama'; did you mean 'llama'.*a copy of conf/model/llama.yaml"),
        (
            without(LLAMA, "model_type"),
            r"model_type\): .* got none; is this the config.json",
        ),
        (small("gemma2", layer_types=["full_attention", "odd"]), "got 'odd'$"),
        (small("gemma2", layer_types=["full_attention"]), "expected 2 entries .* got 1"),
        (small("qwen3", layer_types=["full_attention", "odd"]), "full or sliding .* got 'odd'$"),
        (small("llama", layer_types=["full_attention", "odd"]), "got 'odd'$"),
        (small("mixtral", num_local_experts=2, num_experts_per_tok=20), "at most the 2 experts"),
        (small("llama", hidden_size="big"), r"hidden_size\): expected a whole number .* got 'big'"),
        (small("llama", num_hidden_layers=0), r"num_hidden_layers\): .* got 0"),
        (small("bamba", layers_block_type=["mamba", "rnn"]), "got 'rnn'$"),
        (small("nemotron_h", hybrid_override_pattern="MX"), "letters M \\* - E, got X"),
        (small("gemma3n_text", num_kv_shared_layers=2), "a layer of sliding_attention before"),
        (small("llama4_text", no_rope_layers=[1]), r"no_rope_layers\): expected 2 entries, got 1"),
        (small("bert", is_decoder=True), r"is_decoder\): expected an encoder"),
        (small("zamba2", num_mem_blocks=2, hybrid_layer_ids=[1]), r"num_mem_blocks\): expected 1"),
        (small("llama", torch_dtype="int3"), "expected one of bfloat16, float16, float32"),
    ],
)
def test_what_the_reader_does_not_know_is_an_error(
    raw: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, raw)


def test_a_place_is_a_folder_a_file_or_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_place(path=str(tmp_path)) == read_place(path=str(tmp_path / "config.json"))
    with pytest.raises(ConfigError, match="model.path: expected a folder with a config.json"):
        read_place(path=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="either model.path or model.repo, got neither"):
        read_place()
    with pytest.raises(ConfigError, match="either model.path or model.repo, got both"):
        read_place(path=str(tmp_path), repo="a/b")


def test_a_file_that_is_no_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="expected JSON, got Expecting"):
        read_place(path=str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object, got list"):
        read_place(path=str(tmp_path))


# --- draft layers ----------------------------------------------------------------------------
def test_a_draft_model_adds_its_layers_after_the_models(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    target = read(draft, small("llama", num_hidden_layers=1, num_key_value_heads=1))
    model = read(tmp_path, LLAMA, draft=str(draft))
    assert [c.name for c in model.caches] == [f"model.layers.{i}.self_attn.attn" for i in range(3)]
    assert [c.fields["num_kv_heads"] for c in model.caches] == [2, 2, 1]
    alone = read(tmp_path, LLAMA)
    assert alone.parameter_count is not None and target.parameter_count is not None
    assert model.parameter_count == alone.parameter_count + target.parameter_count


def test_prediction_layers_draft_when_the_file_has_them(tmp_path: Path) -> None:
    raw = published("deepseek-ai/DeepSeek-V3") | {"num_nextn_predict_layers": 1}
    model = read(tmp_path, raw, draft="mtp")
    assert (model.num_layers, len(model.caches)) == (62, 62)
    assert model.caches[-1].name == "model.layers.61.self_attn.attn"
    assert model.caches[-1].fields == {"head_size": 576}
    with pytest.raises(ConfigError, match="model.draft: expected a model with prediction layers"):
        read(tmp_path, LLAMA, draft="mtp")


# --- parameters of ranks ----------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b"]
)
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (4, 1), (8, 2), (16, 4)])
def test_ranks_hold_every_parameter_once_but_for_what_is_replicated(
    name: str, tp: int, pp: int
) -> None:
    raw = published(name)
    family = families()[raw["model_type"]]
    weights = family.weights(family.config(raw))
    num_layers, held, copies = models()[name]["num_layers"], 0, 0
    bounds = [num_layers * stage // pp for stage in range(pp + 1)]
    for stage in range(pp):
        layers = range(bounds[stage], bounds[stage + 1])
        ends = {"first": stage == 0, "last": stage == pp - 1}
        held += tp * rank_parameters(weights, ranks=Ranks(tp=tp), stage_layers=layers, **ends)
    for weight in weights:
        parts = 1 if weight.split is None else weight.parts or weight.shape[weight.split]
        copies += (tp // min(tp, parts) - 1) * weight.num_parameters
    assert held - copies == models()[name]["parameter_count"]


@pytest.mark.parametrize(("tp", "dp"), [(1, 2), (2, 1), (1, 8), (2, 4), (4, 8), (1, 6)])
@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_235b_a22b", "mixtral", "gpt_oss_120b"])
def test_experts_are_spread_over_all_ranks_as_one_by_one(name: str, tp: int, dp: int) -> None:
    """Each expert dealt out by vLLM's rule, in turn; what is no expert as tensor parallel has it,
    but for shared experts where tokens are spread over ranks, too."""
    weights = Preset(Preset.Options(**shipped_option("model", name))).read().weights()
    everything = {"stage_layers": range(200), "first": True, "last": True}
    rest = [weight for weight in weights if ".experts." not in weight.name]
    plain = rank_parameters(rest, ranks=Ranks(tp=tp), **everything)
    dealt = [0] * (tp * dp)
    for weight in weights:
        if ".experts." in weight.name:
            base, more = divmod(weight.count, tp * dp)
            for rank in range(tp * dp):
                dealt[rank] += (base + (rank < more)) * prod(weight.shape)
    shared = [w for w in rest if "shared_expert" in w.name and w.split is not None]
    whole_ones = sum(weight.num_parameters for weight in shared)
    copied = whole_ones - whole_ones // tp if min(tp, dp) > 1 else 0
    whole = Ranks(tp=tp, dp=dp, expert_parallel=True)
    if (tp, dp, name) == (4, 8, "mixtral"):
        return  # 8 experts for 32 ranks, which is refused
    assert rank_parameters(weights, ranks=whole, **everything) == plain + copied + max(dealt)
    if dp == 6:
        return  # of slices no six are equal
    # Slices of every one: as many, but for down-projections' biases, which each rank has.
    sliced = rank_parameters(weights, ranks=Ranks(tp=tp, dp=dp), **everything)
    biases = [w for w in weights if ".experts." in w.name and w.split is None]
    again = sum(weight.num_parameters for weight in biases)
    assert sliced == plain + sum(dealt) // (tp * dp) + again - again // (tp * dp)


def test_both_ends_of_a_pipeline_hold_a_tied_embedding() -> None:
    raw = published("google/gemma-2b")
    family = families()["gemma"]
    weights = family.weights(family.config(raw))
    ends = {"ranks": Ranks(), "stage_layers": range(0)}
    embedding = 256_000 * 2048
    assert rank_parameters(weights, **ends, first=True, last=False) == embedding
    assert rank_parameters(weights, **ends, first=False, last=True) == embedding + 2048
    whole = {"ranks": Ranks(), "stage_layers": range(18), "first": True, "last": True}
    assert rank_parameters(weights, **whole) == models()["google/gemma-2b"]["parameter_count"]


# --- quantised checkpoints: bytes by hand --------------------------------------------------------
# A layer of LLAMA: q and o [256, 256], k and v [128, 256], gate and up [512, 256], down [256, 512].
NUMBERS = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256)  # 1,179,648 in 14 matrices
# Embedding and head of 1,000 x 256, four norms and the last of 256, two bytes each.
REST = 2 * (2 * 1000 * 256 + 5 * 256)
GROUP_ROWS = 2 * (2 * 2 * 256 + 2 * 2 * 128 + 2 * 2 * 512 + 4 * 256)  # groups of 128 columns
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FP8_CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **more}


@pytest.mark.parametrize(
    ("quantization", "quantized"),
    [
        # 128 x 128 blocks: 4 each in q and o, 2 in k and v, 8 in the rest; a float32 scale a block.
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, NUMBERS + 2 * 36 * 4),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, NUMBERS + 14 * 4),
        ({"quant_method": "fp8", "activation_scheme": "static"}, NUMBERS + 14 * 8),
        # 4 bits a number; for 128 columns a float16 scale and a 4-bit zero a row.
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128},
            NUMBERS // 2 + GROUP_ROWS * 2 + GROUP_ROWS // 2,
        ),
        # The same, and an int32 a column: 6 matrices of 256 and one of 512 columns a layer.
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            NUMBERS // 2 + GROUP_ROWS * 2 + GROUP_ROWS // 2 + 2 * (6 * 256 + 512) * 4,
        ),
        # One scale and zero a row in each of 7 matrices a layer (2,048 rows).
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1},
            NUMBERS + 2 * 2048 * 3 + 2 * (6 * 256 + 512) * 4,
        ),
        # 4 bits a number, an fp8 scale for 16, two float32 a matrix.
        (NVFP4, NUMBERS // 2 + NUMBERS // 16 + 14 * 8),
        # Scales in bfloat16, one a group of 128; the original shape as two int64.
        (compressed(INT4), NUMBERS // 2 + GROUP_ROWS * 2 + 14 * 16),
        (compressed(FP8_CHANNEL), NUMBERS + 2 * 2048 * 2),
    ],
)
def test_a_quantised_checkpoint_takes_the_bytes_counted_by_hand(
    quantization: dict[str, Any], quantized: int, tmp_path: Path
) -> None:
    model = read(tmp_path, LLAMA | {"quantization_config": quantization})
    assert model.weight_bytes == REST + quantized
    assert model.parameter_count == NUMBERS + REST // 2
    assert any("quantised with" in note for note in model.notes)


def test_modules_that_are_not_converted_stay_in_the_files_dtype(tmp_path: Path) -> None:
    down = 512 * 256  # of layer 1
    for pattern in ("model.layers.1.mlp.down_proj", "*.1.mlp.down*", "re:.*1.mlp.down_proj$"):
        quantization = NVFP4 | {"exclude_modules": [pattern]}
        model = read(tmp_path, LLAMA | {"quantization_config": quantization})
        numbers = NUMBERS - down
        assert model.weight_bytes == REST + numbers // 2 + numbers // 16 + 13 * 8 + down * 2


def test_gpt_oss_20b_takes_its_published_bytes(tmp_path: Path) -> None:
    """Experts in MXFP4; the published index names 13,761,264,768 bytes."""
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": [*kept, "lm_head"]}
    raw = published("openai/gpt-oss-20b") | {"quantization_config": quantization}
    assert read(tmp_path, raw).weight_bytes == 13_761_264_768


def test_an_unknown_quantiser_leaves_the_bytes_unknown(tmp_path: Path) -> None:
    model = read(tmp_path, LLAMA | {"quantization_config": {"quant_method": "new"}})
    assert model.weight_bytes is None
    assert "checkpoint quantised with new" in model.notes


# --- safetensors headers -----------------------------------------------------------------------
def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
        for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def test_headers_of_plain_floats_give_the_number_of_parameters(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a-1-of-2.safetensors", {"x": ("BF16", [10, 3])})
    write_safetensors(tmp_path / "a-2-of-2.safetensors", {"y": ("F32", [7]), "z": ("F16", [])})
    model = read(tmp_path, LLAMA)
    assert (model.parameter_count, model.weight_bytes) == (38, None)
    assert model.source == "config.json and safetensors headers"


def test_headers_of_a_quantised_checkpoint_give_its_bytes(tmp_path: Path) -> None:
    tensors = {"q": ("U8", [4, 8]), "s": ("F8_E4M3", [4]), "p": ("F4", [6]), "n": ("BF16", [5])}
    write_safetensors(
        tmp_path / "model.safetensors", {k: (d, list(s)) for k, (d, s) in tensors.items()}
    )
    model = read(tmp_path, LLAMA | {"quantization_config": NVFP4})
    assert model.weight_bytes == 32 + 4 + 3 + 10
    assert model.parameter_count == NUMBERS + REST // 2


def test_a_broken_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ConfigError, match="expected a safetensors header, .*git lfs pull"):
        read(tmp_path, LLAMA)
    write_safetensors(tmp_path / "model.safetensors", {"x": ("F3", [1])})
    with pytest.raises(ConfigError, match="expected a dtype of F64.* got 'F3'"):
        read(tmp_path, LLAMA)


# --- the Hub, with a stand-in for its library ---------------------------------------------
@pytest.fixture
def endpoint() -> Iterator[str]:
    """An address where something listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class Hub:
    """What kvpipe uses of huggingface_hub: one file, and the headers of safetensors files."""

    def __init__(self, folder: Path, endpoint: str, error: Exception | None = None) -> None:
        self.folder, self.error, self.asked = folder, error, list[tuple[str, str, str | None]]()
        self.constants = SimpleNamespace(ENDPOINT=endpoint)
        self.cached: str | None = None

    def hf_hub_download(self, repo: str, file: str, revision: str | None) -> str:
        if self.error:
            raise self.error
        self.asked.append((repo, file, revision))
        return str(self.folder / file)

    def try_to_load_from_cache(self, repo: str, file: str, revision: str | None) -> str | None:
        return self.cached

    def get_safetensors_metadata(self, repo: str, revision: str | None) -> Any:
        raise FileNotFoundError(repo)


def test_a_repository_is_asked_for_its_config_at_a_revision(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    hub = Hub(tmp_path, endpoint)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    model = read_place(repo="org/name@v2")
    assert hub.asked == [("org/name", "config.json", "v2")]
    assert (model.name, kinds(model)) == ("org/name@v2", ["full", "full"])


def test_headers_of_a_repository_give_the_number_of_parameters(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithHeaders(Hub):
        def get_safetensors_metadata(self, repo: str, revision: str | None) -> Any:
            tensor = SimpleNamespace(dtype="BF16", shape=[3, 5])
            return SimpleNamespace(files_metadata={"a": SimpleNamespace(tensors={"x": tensor})})

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setitem(sys.modules, "huggingface_hub", WithHeaders(tmp_path, endpoint))
    model = read_place(repo="org/name")
    assert (model.parameter_count, model.rank_parameters) == (15, None)


def test_an_unreachable_repository_names_what_to_check(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "huggingface_hub", Hub(tmp_path, endpoint, OSError("no route"))
    )
    with pytest.raises(ConfigError, match="org/name, got OSError: no route; .*HF_ENDPOINT"):
        read_place(repo="org/name")


def test_a_silent_hub_is_said_at_once_unless_the_library_kept_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # nobody listens there any more
    hub = Hub(tmp_path, f"http://127.0.0.1:{port}")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(
        ConfigError, match="got could not reach 127.0.0.1: Connection refused; .*HF_ENDPOINT"
    ):
        read_place(repo="org/name")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    hub.cached = str(tmp_path / "config.json")
    assert kinds(read_place(repo="org/name")) == ["full", "full"]


class PublicHub(BaseHTTPRequestHandler):
    """One public repository, one that is not, and one with a file of 40 MiB."""

    def do_GET(self) -> None:
        shown = json.dumps(LLAMA) if self.path == "/org/name/resolve/v2/config.json" else None
        self.send_response(200 if shown or "huge" in self.path else 401)
        self.end_headers()
        with suppress(OSError):  # the reader has gone
            if "huge" in self.path:
                for _ in range(40):
                    self.wfile.write(b" " * 2**20)
            self.wfile.write((shown or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def without_the_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with ThreadingHTTPServer(("127.0.0.1", 0), PublicHub) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr("kvpipe.models.hub.ENDPOINT", address)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield
        server.shutdown()


def test_a_public_repository_is_read_without_huggingface_hub(without_the_library: None) -> None:
    model = read_place(repo="org/name@v2")
    assert (model.name, kinds(model)) == ("org/name@v2", ["full", "full"])


def test_without_huggingface_hub_what_is_not_public_says_what_to_install(
    without_the_library: None,
) -> None:
    with pytest.raises(ConfigError, match="HTTP 401.*pip install huggingface_hub") as caught:
        read_place(repo="org/gated")
    assert len(caught.value.lines()) == 1


def test_a_file_of_the_hub_that_is_too_long_is_refused(without_the_library: None) -> None:
    with pytest.raises(ConfigError, match="more than 16 MiB"):
        read_place(repo="org/huge")


def test_a_stretched_context_is_stretched_once(tmp_path: Path) -> None:
    """Gemma 3 files count the stretched length; transformers 5 writes rope_parameters."""

    def context(name: str, **changes: object) -> int:
        return read(tmp_path, {**published(name), **changes}).context_length

    linear = {"rope_type": "linear", "factor": 8.0}
    length = {"max_position_embeddings": 131072}
    assert context("google/gemma-3-1b-pt", rope_scaling=linear, **length) == 131072
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    short = {"max_position_embeddings": 32768}
    for key in ("rope_scaling", "rope_parameters"):
        assert context("Qwen/Qwen3-8B", **{key: yarn}, **short) == 131072


def test_sizes_that_a_cut_file_leaves_to_its_class_are_named(tmp_path: Path) -> None:
    cut = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28}
    (note,) = [note for note in read(tmp_path, cut).notes if "leaves out sizes" in note]
    for said in ("num_attention_heads=32", "intermediate_size=22016", "vocab_size=151936"):
        assert said in note
    assert "hidden_size" not in note
    whole = {"num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944}
    whole = {**cut, **whole, "vocab_size": 152064}
    assert not any("leaves out sizes" in note for note in read(tmp_path, whole).notes)
    null = {**whole, "num_key_value_heads": None}  # said: as many as there are heads
    assert not any("leaves out sizes" in note for note in read(tmp_path, null).notes)
