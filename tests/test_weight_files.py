"""Which files of a folder are its weights, what they prove, and what a checkpoint declares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_files import SMALL_LLAMA

from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.hf import PLUGIN
from kvpipe.models.reading import read_geometry
from kvpipe.models.weight_files import ADAPTER, INDEX

LLAMA = SMALL_LLAMA | {"architectures": ["LlamaForCausalLM"]}
Shapes = dict[str, tuple[int, ...]]


def tensors(folder: Path, name: str, shapes: Shapes, dtype: str = "BF16") -> None:
    header = {n: {"dtype": dtype, "shape": shape} for n, shape in shapes.items()}
    text = json.dumps(header).encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text)


def read(folder: Path, **changes: Any) -> ModelGeometry:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    options = {"reader": "hf", "dtype": "auto", "repo": None, "probe": False, "draft": None}
    return PLUGIN(PLUGIN.Options(path=str(folder), **options)).read()


def refused(folder: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, **changes)
    (line,) = caught.value.lines()
    return line


def index(folder: Path, *files: str) -> None:
    table = {f"tensor{i}": file for i, file in enumerate(files)}
    (folder / INDEX).write_text(json.dumps({"weight_map": table}))


def test_a_folder_with_some_of_its_shards_names_the_missing_ones(tmp_path: Path) -> None:
    shards = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    tensors(tmp_path, shards[0], {"tensor0": (10, 10)})
    said = f"got 1; missing {shards[1]}, {shards[2]}; finish the download"
    assert said in refused(tmp_path)  # by the file's own name
    index(tmp_path, *shards)
    assert said in refused(tmp_path)
    for i, shard in enumerate(shards):
        tensors(tmp_path, shard, {f"tensor{i}": (10, 10)})
    assert read(tmp_path).parameter_count == 300


def test_weights_that_lie_there_twice_are_counted_once(tmp_path: Path) -> None:
    tensors(tmp_path, "consolidated.safetensors", {"other.name": (7, 10)})
    assert read(tmp_path).parameter_count == 70
    tensors(tmp_path, "model-00001-of-00001.safetensors", {"tensor0": (7, 10)})
    assert read(tmp_path).parameter_count == 70
    tensors(tmp_path, "model.safetensors", {"tensor0": (7, 10)})
    assert read(tmp_path).parameter_count == 70


def test_an_index_without_any_shard_leaves_config_json_to_say(tmp_path: Path) -> None:
    plain = read(tmp_path).parameter_count
    index(tmp_path, "model-00001-of-00001.safetensors")
    assert read(tmp_path).parameter_count == plain


def test_a_lora_is_no_weight_of_the_model_but_a_line_of_its_own(tmp_path: Path) -> None:
    plain = read(tmp_path)
    tensors(tmp_path, ADAPTER, {"lora_A": (8, 256), "lora_B": (256, 8)})
    model = read(tmp_path)
    assert model.parameter_count == plain.parameter_count
    assert (model.adapter_bytes, model.max_loras) == (2 * 8 * 256 * 2, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "a JSON object with a weight_map"),
        ("{", "got JSONDecodeError"),
        ('{"weight_map": {}}', "a JSON object with a weight_map"),
        ('{"weight_map": {"a": 5}}', "names of files beside it"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "names of files beside it"),
        ('{"weight_map": {"a": "x.bin"}}', "names of files beside it"),
        ("[" * 100_000, "got RecursionError"),
    ],
)
def test_a_wrong_index_is_one_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(content)
    assert said in refused(tmp_path)


# --- what headers prove ------------------------------------------------------------------------
def projections(kv_rows: int, layers: int = 2, dtype: str = "BF16") -> Shapes:
    return {
        f"model.layers.{i}.self_attn.{part}.weight": (kv_rows, 256)
        for i in range(layers)
        for part in ("k_proj", "v_proj")
    }


def test_projections_that_agree_layer_by_layer_prove_the_plan(tmp_path: Path) -> None:
    tensors(tmp_path, "model.safetensors", projections(128))
    assert any("agree with the plan, layer by layer" in note for note in read(tmp_path).notes)
    tensors(tmp_path, "model.safetensors", projections(128, layers=1))
    assert not any("layer by layer" in note for note in read(tmp_path).notes)


def test_projections_that_contradict_the_file_refuse_it(tmp_path: Path) -> None:
    tensors(tmp_path, "model.safetensors", projections(256))
    line = refused(tmp_path)
    assert "layer 0): expected 128 rows of self_attn.k_proj, got 256" in line


def test_packed_weights_prove_nothing(tmp_path: Path) -> None:
    tensors(tmp_path, "model.safetensors", projections(16), dtype="I32")
    assert not any("layer by layer" in note for note in read(tmp_path).notes)


# --- the KV cache that a checkpoint declares -----------------------------------------------------
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_scheme": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_scheme": SCHEME | {"num_bits": 4}}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
        ({"quant_method": "fp8"}, None),
    ],
)
def test_the_declared_dtype_of_the_cache_is_read(
    quantization: dict[str, Any], dtype: str | None, tmp_path: Path
) -> None:
    assert read(tmp_path, quantization_config=quantization).kv_dtype == dtype


@pytest.mark.parametrize(
    ("method", "release", "stored"),
    [
        ("compressed-tensors", "0.17.0", "fp8_e4m3"),
        ("compressed-tensors", "0.28.0", "bfloat16"),
        ("compressed-tensors", "0.33.0", "bfloat16"),
        ("modelopt", "0.17.0", "bfloat16"),
    ],
)
def test_what_is_set_beside_a_declared_cache_is_read_as_the_planned_release_reads_it(
    method: str, release: str, stored: str, tmp_path: Path
) -> None:
    """vLLM 0.17's attention layers take compressed-tensors' word over the user's."""
    declared = {"kv_cache_scheme": SCHEME, "quant_method": method}
    if method == "modelopt":
        declared = {"kv_cache_quant_algo": "FP8", "quant_method": method}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": declared}))
    words = ["model=hf", f"model.path={tmp_path}", "device=h100_80gb", "cache.cache_dtype=bfloat16"]
    run = prepared_request([*words, "engine=vllm", f"engine.version={release}"]).prepared.resolved
    assert run.cache_dtype == stored
    assert any("whatever is set" in note.text for note in run.notes) == (stored != "bfloat16")


def test_older_modelopt_declares_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    content = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    model = read(tmp_path)
    assert model.kv_dtype == "fp8_e4m3"
    assert "checkpoint quantised with modelopt" in model.notes


def test_a_scheme_that_nothing_stores_is_refused(tmp_path: Path) -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME | {"num_bits": 4}}
    assert "expected 8 bits of type float, got 4" in refused(tmp_path, quantization_config=scheme)


def test_every_mistake_of_a_file_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, hidden_size="x", num_attention_heads=7, vocab_size=1.5)
    keys = {problem.key.split(": ")[-1].rstrip(")") for problem in caught.value.problems}
    assert keys == {"hidden_size", "num_key_value_heads", "vocab_size"}


@pytest.mark.parametrize(
    ("declared", "num_bytes"),
    [
        ({"kv_cache_scheme": SCHEME}, 2 * 2 * 4),  # layers, K and V, float32
        ({"kv_cache_scheme": SCHEME | {"strategy": "attn_head"}}, 2 * 2 * 4 * 2),  # and heads
        ({"kv_cache_scheme": SCHEME | {"dynamic": True}}, 0),
        ({"kv_cache_quant_algo": "FP8"}, 2 * 2 * 4),
        ({"kv_cache_scheme": "FP8"}, 2 * 2 * 4),
        ({"kv_cache_quant_algo": "NVFP4"}, 0),
    ],
)
def test_scales_of_an_fp8_cache_are_counted_with_the_weights(
    declared: dict[str, Any], num_bytes: int
) -> None:
    def stored(**words: Any) -> int:
        quantization = {"quant_method": "modelopt", "quant_algo": "FP8", **words}
        raw = json.dumps(LLAMA | {"quantization_config": quantization})
        return read_geometry(parse_config(raw, "config.json", "llama", None)).weight_bytes or 0

    assert stored(**declared) - stored() == num_bytes


# --- a head size that only headers say ------------------------------------------------------------
def nobody_knows(folder: Path, **changes: Any) -> ModelGeometry:
    """A file of a type without a family, as its class saves it but without head_dim."""
    saved = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "use_cache": True}
    return read(
        folder, **{**saved, "model_type": "new", "architectures": ["NewForCausalLM"], **changes}
    )


FUSED = {f"model.layers.{i}.self_attn.qkv_proj.weight": (512, 256) for i in range(2)}


@pytest.mark.parametrize("shapes", [projections(128), FUSED], ids=["k_proj, v_proj", "qkv_proj"])
def test_a_file_without_head_dim_is_read_where_headers_prove_it(
    tmp_path: Path, shapes: Shapes
) -> None:
    tensors(tmp_path, "model.safetensors", shapes)
    model = nobody_knows(tmp_path)
    assert [cache.fields for cache in model.caches] == [{"num_kv_heads": 2, "head_size": 64}] * 2
    assert "the shapes of all K/V projections agree with the plan, layer by layer" in model.notes


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        ({}, "BF16"),  # no headers
        (projections(256), "BF16"),  # heads of 128, as Cohere 2's class has them
        (projections(128, layers=1), "BF16"),  # one of two layers
        (projections(128) | {"model.layers.1.self_attn.v_proj.weight": (256, 256)}, "BF16"),
        (projections(128), "I32"),  # packed
        ({"lm_head.weight": (1000, 256)}, "BF16"),
    ],
)
def test_hidden_size_over_heads_is_never_a_guess(
    tmp_path: Path, shapes: Shapes, dtype: str
) -> None:
    if shapes:
        tensors(tmp_path, "model.safetensors", shapes, dtype)
    with pytest.raises(ConfigError) as caught:
        nobody_knows(tmp_path)
    assert any("head_dim (expected a number" in line for line in caught.value.lines())


def test_a_hidden_size_that_heads_do_not_divide_proves_nothing(tmp_path: Path) -> None:
    tensors(tmp_path, "model.safetensors", projections(84))
    with pytest.raises(ConfigError, match="head_dim"):
        nobody_knows(tmp_path, num_attention_heads=6)
