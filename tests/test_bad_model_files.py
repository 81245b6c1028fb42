"""A model's file may hold anything: what is wrong is one line that names the file and the key."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from small_files import SMALL_LLAMA

from kvpipe.errors import ConfigError, Problem
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import MAX_LAYERS, ModelGeometry
from kvpipe.models.hf import PLUGIN
from kvpipe.models.hub import Unreachable
from kvpipe.models.preset import PLUGIN as PRESET
from kvpipe.request.schema import check_section
from kvpipe.specs.attention import legal_tp_sizes
from kvpipe.specs.base import SpecContext
from kvpipe.stages.validation.layers import build_layers

LLAMA = SMALL_LLAMA
CONTEXT = SpecContext(
    block_size=16,
    dtype="bfloat16",
    cache_dtype="auto",
    model_dtype="bfloat16",
    conv_dtype="bfloat16",
    ssm_dtype="bfloat16",
    max_model_len=4096,
)


def read(path: str | Path, **more: Any) -> ModelGeometry:
    options = {"reader": "hf", "dtype": "auto", "repo": None, "probe": False, "draft": None}
    return PLUGIN(PLUGIN.Options(path=str(path), **(options | more))).read()


def refused(path: str | Path, **more: Any) -> str:
    """The one line that is said of a file."""
    with pytest.raises(ConfigError) as caught:
        read(path, **more)
    (line,) = caught.value.lines()
    return line


def refused_values(folder: Path, **changes: Any) -> str:
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return refused(folder)


# --- files that are no files of ours -----------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x00\xff\xfe\x01", "expected JSON in UTF-8"),
        ('{"model_type": "é"}'.encode("latin-1"), "expected JSON in UTF-8"),
        (json.dumps(LLAMA).encode("utf-16"), "expected JSON in UTF-8"),
        (b'{"model_type": "\\ud800"}', "surrogates not allowed"),
        (b"[" * 100_000, "got too many levels of nesting"),
        (b'{"a": ' + b"9" * 5000 + b"}", "got a number of thousands of digits"),
        (b"", "expected JSON, got Expecting value"),
        (b"5", "expected a JSON object, got int"),
        (b"null", "expected a JSON object, got NoneType"),
    ],
)
def test_a_file_that_is_not_json_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    line = refused(tmp_path)
    assert line.startswith(f"model.path ({file}): expected ") and said in line


@pytest.mark.parametrize(
    "place", ["~nobody-of-that-name/x", "/" + "a" * 5000, "a\0b", "/dev/null", "/nowhere/at/all"]
)
def test_a_place_that_cannot_be_is_one_line(place: str) -> None:
    assert refused(place).startswith("model.path: expected a folder with a config.json")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_file_that_cannot_be_read_says_what_the_system_says() -> None:
    assert "expected a file that can be read, got Input/output error" in refused("/proc/self/mem")


def test_an_endless_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpipe.models.config_file.LONGEST_FILE", 2**20)
    (tmp_path / "config.json").write_bytes(b" " * (2**20 + 1))
    assert "got more than 1 MiB" in refused(tmp_path)


def test_a_text_part_within_a_thousand_others_is_found(tmp_path: Path) -> None:
    raw: dict[str, Any] = LLAMA
    for _ in range(500):
        raw = {"text_config": raw}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert read(tmp_path).num_layers == 2


# --- values of a config.json ---------------------------------------------------------------------
AWQ, GPTQ, FP8 = ({"quant_method": name} for name in ("awq", "gptq", "fp8"))
PACKED = {"quant_method": "compressed-tensors"}
HUGE = 10**30


def packed(**weights: Any) -> dict[str, Any]:
    return PACKED | {"config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("changes", "key", "said"),
    [
        ({"hidden_size": True}, "hidden_size", "a whole number of at least 1, got True"),
        ({"hidden_size": 2**31}, "hidden_size", "at most 2,147,483,647, got 2147483648"),
        ({"hidden_size": 10**400}, "hidden_size", "got a number of 1329 bits"),
        ({"vocab_size": 1.5}, "vocab_size", "a whole number of at least 1, got 1.5"),
        ({"max_position_embeddings": HUGE}, "max_position_embeddings", "at most 2,147,483,647"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers", "and at most 10,000, got 1000000"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers", "and at most 10,000"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false, got 'yes'"),
        ({"attention_bias": [0]}, "attention_bias", "true or false, got [0]"),
        ({"model_type": 5}, "model_type", "text, got 5"),
        ({"torch_dtype": ["float16"]}, "torch_dtype", "text, got ['float16']"),
        ({"_name_or_path": {}}, "_name_or_path", "text, got {}"),
        ({"num_experts_per_tok": "x"}, "num_experts_per_tok", "a whole number from 0"),
        ({"mamba_ssm_dtype": "int3"}, "mamba_ssm_dtype", "one of bfloat16, float16, float32"),
        # rope
        ({"rope_scaling": 5}, "rope_scaling", "settings ({...}), got 5"),
        ({"rope_scaling": ["yarn"]}, "rope_scaling", "settings"),
        ({"rope_scaling": {"type": 5, "factor": 2}}, "rope_scaling.type", "text, got 5"),
        *(
            ({"rope_scaling": {"type": "yarn", "factor": factor}}, "rope_scaling.factor", said)
            for factor, said in [
                ("x", "a number above 0 and at most 1,000,000, got 'x'"),
                (-3, "got -3"),
                (0, "got 0"),
                (True, "got True"),
                (float("nan"), "got nan"),
                (float("inf"), "got inf"),
                (1e300, "got 1e+300"),
                (10**400, "got a number of"),
                (999_999, "a context of at most 2,147,483,647 tokens"),
            ]
        ),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 2,
                    "original_max_position_embeddings": "x",
                }
            },
            "rope_scaling.original_max_position_embeddings",
            "got 'x'",
        ),
        # windows and kinds of layers
        ({"model_type": "mistral", "sliding_window": "x"}, "sliding_window", "got 'x'"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window", "got -1"),
        (
            {"model_type": "llama4_text", "attention_chunk_size": [1]},
            "attention_chunk_size",
            "got [1]",
        ),
        ({"model_type": "llama4_text", "no_rope_layers": 1}, "no_rope_layers", "a list of whole"),
        ({"model_type": "gemma2", "layer_types": 5}, "layer_types", "a list of text, got 5"),
        ({"model_type": "gemma2", "layer_types": [[], {}]}, "layer_types", "a list of text"),
        ({"model_type": "jamba", "attn_layer_offset": "4"}, "attn_layer_offset", "got '4'"),
        ({"model_type": "bamba", "attn_layer_indices": 1}, "attn_layer_indices", "a list of"),
        (
            {"model_type": "nemotron_h", "hybrid_override_pattern": 7},
            "hybrid_override_pattern",
            "text, got 7",
        ),
        # experts and latents
        (
            {"model_type": "deepseek_v3", "first_k_dense_replace": [None]},
            "first_k_dense_replace",
            "a whole number from 0 to 2,147,483,647, got [None]",
        ),
        ({"model_type": "glm4_moe", "n_shared_experts": ["x"]}, "n_shared_experts", "got ['x']"),
        ({"model_type": "deepseek_v3", "q_lora_rank": [None]}, "q_lora_rank", "got [None]"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": "01"}, "mlp_only_layers", "a list of"),
        (
            {"model_type": "gemma3n_text", "intermediate_size": [1], "num_kv_shared_layers": 0},
            "intermediate_size",
            "2 sizes",
        ),
        ({"model_type": "mpt", "attn_config": "x"}, "attn_config", "settings"),
        ({"model_type": "t5", "num_layers": 10**9}, "num_layers", "at most 10,000"),
        # quantisation
        *(
            ({"quantization_config": value}, "quantization_config", "settings ({...}), got ")
            for value in (5, "x", [1], 0, "")
        ),
        *(
            ({"quantization_config": value}, f"quantization_config.{key}", said)
            for value, key, said in [
                ({"quant_method": 5}, "quant_method", "text, got 5"),
                (AWQ | {"bits": "x"}, "bits", "one of 2, 3, 4, 5, 6, 7, 8, got 'x'"),
                (AWQ | {"bits": -4}, "bits", "got -4"),
                (GPTQ | {"bits": 0}, "bits", "got 0"),
                (GPTQ | {"bits": True}, "bits", "got True"),
                (GPTQ | {"group_size": 0}, "group_size", "got 0"),
                (GPTQ | {"group_size": -2}, "group_size", "got -2"),
                (AWQ | {"q_group_size": "x"}, "q_group_size", "got 'x'"),
                (FP8 | {"weight_block_size": [0, 0]}, "weight_block_size", "[rows, columns]"),
                (FP8 | {"weight_block_size": [128]}, "weight_block_size", "[rows, columns]"),
                (FP8 | {"weight_block_size": "x"}, "weight_block_size", "a list of whole numbers"),
                (FP8 | {"modules_to_not_convert": 5}, "modules_to_not_convert", "a list of text"),
                (FP8 | {"ignored_layers": [5]}, "ignored_layers", "a list of text, got [5]"),
                (FP8 | {"ignore": ["re:("]}, "ignore", "regular expressions"),
                (PACKED | {"config_groups": [1]}, "config_groups", "settings"),
                (PACKED | {"config_groups": {"a": 5}}, "config_groups.a", "settings"),
                (
                    packed(num_bits=4, type="int", group_size=0),
                    "config_groups.group_0.weights.group_size",
                    "got 0",
                ),
                (
                    packed(num_bits="x"),
                    "config_groups.group_0.weights.num_bits",
                    "a whole number from 0",
                ),
            ]
        ),
    ],
)
def test_a_wrong_value_names_its_key(
    changes: dict[str, Any], key: str, said: str, tmp_path: Path
) -> None:
    line = refused_values(tmp_path, **changes)
    assert line.startswith(f"model.path (config.json: {key}): expected ") and said in line, line


def test_null_is_a_missing_key_and_a_row_may_be_one_group(tmp_path: Path) -> None:
    nulls = dict.fromkeys(("rope_scaling", "quantization_config", "tie_word_embeddings"))
    for changes in (nulls, {"quantization_config": {}}, {"rope_scaling": {"factor": None}}):
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
        assert (read(tmp_path).weight_bytes, read(tmp_path).context_length) == (None, 4096)
    whole_row = AWQ | {"group_size": -1}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": whole_row}))
    assert read(tmp_path).weight_bytes


def test_an_unknown_quantiser_is_noted_as_counted_unquantised(tmp_path: Path) -> None:
    changes = {"quantization_config": {"quant_method": "ju\nnk"}}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    notes = read(tmp_path).notes
    assert "how ju nk stores weights is not known here: counted unquantised" in notes


def test_a_name_cannot_write_more_lines_or_colours(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"_name_or_path": "a\nb\x1b[31m"}))
    assert read(tmp_path).name == "a b?[31m"


@pytest.mark.parametrize("bad", ["x", None])
def test_a_wrong_draft_is_a_problem_of_the_draft(bad: Any, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (draft / "config.json").write_text(json.dumps(LLAMA | {"rope_scaling": 5}))
    line = refused(tmp_path, draft=str(draft))
    assert line.startswith("model.draft (config.json: rope_scaling): expected settings")
    assert refused(tmp_path, draft="/nowhere/at/all").startswith("model.draft: expected a folder")


def test_prediction_layers_are_counted_within_the_bound(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_mtp_layers": 10**9}))
    assert "num_mtp_layers): expected a whole number from 0 to 10,000" in refused(
        tmp_path, draft="mtp"
    )


def test_layers_are_counted_before_transformers_builds_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 10**6}))
    pytest.importorskip("transformers", reason="needs transformers and torch")
    assert "at most 10,000, got 1000000" in refused(tmp_path, probe=True)


# --- headers of safetensors files ---
@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"x": {"dtype": [1], "shape": [1]}}, "for tensor 'x', got [1]"),
        ({"x": {"dtype": "F3", "shape": [1]}}, "expected a dtype of F64"),
        ({"x": {"shape": [1]}}, "for tensor 'x', got nothing"),
        *(
            ({"x": {"dtype": "F32", "shape": shape}}, "expected a shape for tensor 'x', a list of")
            for shape in ("abc", [None], [1.5], [[1]], [True], [-1], [2**31], [1] * 17, 5, None)
        ),
        ({"x": 5}, "expected dtype and shape of tensor 'x', got 5"),
        ([1], "expected a safetensors header, got a list"),
    ],
)
def test_a_wrong_header_names_its_file_and_tensor(header: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    file, text = tmp_path / "model.safetensors", json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    line = refused(tmp_path)
    assert line.startswith(f"model.path ({file}): ") and said in line, line


def test_a_header_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    file = tmp_path / "model.safetensors"
    file.write_bytes((100_000).to_bytes(8, "little") + b"[" * 100_000)
    assert "expected a safetensors header, got RecursionError" in refused(tmp_path)
    file.unlink()
    file.mkdir()
    assert "expected a safetensors header, got a folder" in refused(tmp_path)


# --- presets ---------------------------------------------------------------------------------
def section(**changes: Any) -> dict[str, Any]:
    text = (Path(__file__).parents[1] / "conf" / "model" / "llama.yaml").read_text()
    good: dict[str, Any] = yaml.safe_load(text)
    layers = {key[7:]: changes.pop(key) for key in list(changes) if key.startswith("layers_")}
    return good | {"layers": good["layers"] | layers} | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers_count": 2**31 - 1}, "model.layers.count: expected at most 10000"),
        ({"layers_count": True}, "model.layers.count: expected a whole number"),
        ({"layers_pattern": ["attention x 999999999"]}, "model.layers.pattern: expected kinds"),
        ({"layers_pattern": ["attention x 0"]}, "model.layers.pattern: expected kinds"),
        ({"layers_pattern": []}, "model.layers.pattern: expected a list with an entry"),
        ({"layers": None}, "model.layers: expected settings, got None"),
        ({"layers_kinds": 5}, "model.layers.kinds: expected settings, got 5"),
        ({"context_length": 10**400}, "model.context_length: expected less than 2147483648"),
        *(
            ({key: 10**400}, f"model.{key}: expected less than 2147483648")
            for key in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads")
        ),
        ({"hidden_size": "4096"}, "model.hidden_size: expected a whole number, got '4096'"),
        ({"encoder_tokens": 10**400}, "model.encoder_tokens: expected less than"),
        ({"experts_per_token": 10**400}, "model.experts_per_token: expected less than"),
        ({"parameter_count": 2**63}, "model.parameter_count: expected less than 92233720368547"),
        ({"weight_bytes": 10**400}, "model.weight_bytes: expected less than 92233720368547"),
        ({"ssm_dtype": "int3"}, "model.ssm_dtype: expected 'float16', 'bfloat16', 'float32'"),
    ],
)
def test_every_number_of_a_preset_has_a_bound(changes: dict[str, Any], said: str) -> None:
    _, problems = check_section("model", PRESET.Options, section(**changes))
    assert any(str(problem).startswith(said) for problem in problems), problems
    assert all(len(str(problem)) < 500 for problem in problems)


def test_the_bound_of_layers_itself_is_read() -> None:
    options = PRESET.Options.model_validate(section(layers_count=MAX_LAYERS))
    assert len(PRESET(options).read().caches) == MAX_LAYERS
    with pytest.raises(ValidationError):
        PRESET.Options.model_validate(section(layers_count=MAX_LAYERS + 1))


def preset(**changes: Any) -> ModelGeometry:
    return PRESET(PRESET.Options.model_validate(section(**changes))).read()


def test_true_is_no_layer_to_share_with() -> None:
    own = {"spec": "full", "num_kv_heads": 8, "head_size": 128}
    kinds = {"attention": {"a": own}, "shared": {"a": {"shares_with": True}}}
    with pytest.raises(ConfigError, match="a layer that stores its own a, got True"):
        preset(layers_kinds=kinds, layers_pattern=["attention", "attention", "shared"])


def test_a_preset_without_its_sizes_says_what_is_then_not_counted() -> None:
    assert preset().notes == ()
    bare = section()
    del bare["hidden_size"], bare["vocab_size"]
    (note,) = PRESET(PRESET.Options.model_validate(bare)).read().notes
    assert note.startswith("model.hidden_size and model.vocab_size not given: activations")


# --- the caches that a file describes ------------------------------------------------------------
def problems_of(cache: dict[str, Any], tp: int = 1) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_layers(preset(layers_kinds={"attention": {"attn": cache}}), CONTEXT, None, tp)
    return caught.value.lines()


NAN = float("nan")
FULL = {"spec": "full", "num_kv_heads": 8, "head_size": 128}


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        ({"spec": "full", "num_kv_heads": 8}, "missing field 'head_size'"),
        (FULL | {"head_size": 10**400}, "less than 2,147,483,648, got 1000"),
        (FULL | {"dtype": ["x"]}, "dtype must be one of"),
        (FULL | {"odd": 1}, "unknown field 'odd'"),
        ({"spec": "mamba", "states": 0}, "states must be a list, got 0"),
        ({"spec": "mamba", "states": NAN}, "states must be a list, got nan"),
        ({"spec": "mamba", "states": "conv"}, "states must be a list, got 'conv'"),
        ({"spec": "mamba", "states": []}, "states must have 1 to 64 entries, got 0"),
        ({"spec": "mamba", "states": [5]}, "fields name, shape, got 5"),
        ({"spec": "mamba", "states": [{5: 1}]}, "unknown field '5'"),
        ({"spec": "mamba", "states": [{"name": "a", "shape": NAN}]}, "shape must be a list"),
        ({"spec": "mamba", "states": [{"name": "a", "shape": [2] * 9}]}, "1 to 8 entries, got 9"),
        ({"spec": "mamba", "states": [{"name": "a", "shape": [NAN]}]}, "whole number"),
        ({"spec": "nonsuch"}, "nonsuch"),
    ],
)
def test_one_mistake_in_32_layers_is_one_line(cache: dict[str, Any], said: str) -> None:
    (line,) = problems_of(cache)
    assert line.startswith("model.layers (model.layers.0.attn and 31 more): expected "), line
    assert said in line


def test_an_illegal_tensor_parallel_size_names_the_legal_ones() -> None:
    (line,) = problems_of(FULL, tp=7)
    assert line == (
        "parallel.tensor_parallel_size: expected one of 1, 2, 4, 8, 16, 32 "
        "(32 attention heads are split; 8 KV heads are split or replicated), got 7; "
        "a pipeline splits layers instead: parallel.pipeline_parallel_size=7 with "
        "parallel.tensor_parallel_size=1"
    )
    state = {"spec": "mamba", "states": [{"name": "conv", "shape": [6, 3]}]}
    (line,) = problems_of(state, tp=4)
    assert "expected one of 1, 2 (state conv: 6 rows are split), got 4" in line


@pytest.mark.parametrize("model", ["qwen2_5_7b", "qwen3_5_27b", "zamba2"])
def test_a_tensor_parallel_size_that_is_named_is_refused_by_nothing(model: str) -> None:
    """Query heads, K/V heads and states divide by sizes of their own; what is named suits all."""
    words = [f"model={model}", "device=h100_80gb"]
    with pytest.raises(ConfigError) as caught:
        prepared_request([*words, "parallel.tensor_parallel_size=7"])
    (problem,) = caught.value.problems
    sizes, _, reasons = problem.expected.removeprefix("one of ").partition(" (")
    assert problem.key == "parallel.tensor_parallel_size" and "split" in reasons
    for size in sizes.removesuffix(", ...").split(", "):
        prepared_request([*words, f"parallel.tensor_parallel_size={size}"])


@pytest.mark.parametrize("heads", [(8, 0), (8, 32), (2, 14), (1, 71), (40, 40)])
def test_legal_sizes_are_those_that_divide_both_kinds_of_heads(heads: tuple[int, int]) -> None:
    kv, queries = heads
    splits = [n for n in range(1, 500) if (kv % n == 0 or n % kv == 0) and queries % n == 0]
    assert legal_tp_sizes(kv, queries) == [n for n in splits if n <= (queries or 8 * kv)][:8]


# --- what is said ------------------------------------------------------------------------------
def test_a_problem_is_one_line_however_it_was_written() -> None:
    assert (
        str(Problem("a.b", "text", "'x\n\u2028 y\x1b[1m'")) == "a.b: expected text, got 'x y?[1m'"
    )
    long = str(Problem("a", "text", "x" * 10_000, "set it"))
    assert long == f"a: expected text, got {'x' * 200}...; set it"


# --- the Hub -----------------------------------------------------------------------------------
def test_the_installed_library_is_asked_at_its_own_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a stand-in: its constants are a module that it does not load by itself."""
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    asked = list[str]()

    def silent(endpoint: str) -> None:
        asked.append(endpoint)
        raise Unreachable("could not reach hub.example: Name or service not known")

    monkeypatch.setattr("kvpipe.models.hub._answers", silent)
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example")
    with pytest.raises(ConfigError, match="got could not reach hub.example: Name or service"):
        PLUGIN(
            PLUGIN.Options(
                reader="hf", dtype="auto", path=None, repo="org/none", probe=False, draft=None
            )
        ).read()
    assert asked == ["https://hub.example"]
