"""Weights as a choice: bytes as other programs print them, what stays wide, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from model_facts import configs, models

import kvpipe
from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import config_file
from kvpipe.models.formats.gguf import MIXES
from kvpipe.models.reading import read_geometry
from kvpipe.plugins import REGISTRIES
from kvpipe.request.confdir import CONF_DIR, shipped_option

FORMATS = sorted(path.stem for path in (CONF_DIR / "weights").glob("*.yaml"))


def stored(choice: str, model: ModelGeometry, **changes: Any) -> ModelGeometry:
    section = shipped_option("weights", choice) | changes
    plugin = REGISTRIES["weights"].get(section["name"])
    found: ModelGeometry = plugin(plugin.Options(**section)).stored(model)
    return found


def recorded(name: str) -> ModelGeometry:
    return read_geometry(config_file(configs()[models()[name]["config"]], name))


LLAMA = "meta-llama/Llama-3.1-8B"
# GiB and bits a weight, as llama.cpp prints them ("model size"): READMEs of llama.cpp and logs in
# public issues (Jeffser/Alpaca#572 has Qwen 14B, ikawrakow/ik_llama.cpp#84 Llama-3.1-8B's count).
PRINTED = [
    ("meta-llama/Llama-2-7b-hf", "q4_k_m", 3.80, 4.84),
    ("meta-llama/Llama-2-7b-hf", "q4_0", 3.56, 4.54),
    ("meta-llama/Llama-2-7b-hf", "q8_0", 6.67, 8.50),
    ("meta-llama/Llama-2-13b-hf", "q4_k_m", 7.33, 4.83),
    ("meta-llama/Llama-2-70b-hf", "q4_k_m", 38.58, 4.80),
    (LLAMA, "q4_k_m", 4.58, 4.89),
    ("Qwen/Qwen2.5-14B", "q4_k_m", 8.37, 4.87),
]


@pytest.mark.parametrize(("name", "mix", "gib", "bits"), PRINTED)
def test_a_mix_has_the_size_that_llama_cpp_prints(name, mix, gib, bits):
    model = recorded(name)
    num_bytes = stored(mix, model).weight_bytes
    assert num_bytes is not None and model.parameter_count is not None
    assert round(num_bytes / 2**30, 2) == gib
    assert round(num_bytes * 8 / model.parameter_count, 2) == bits


def test_a_mix_has_as_many_tensors_of_each_type_as_a_published_file():
    """Llama-3.1-8B in Q4_K_M: 193 of Q4_K and 33 of Q6_K (abetlen/llama-cpp-python#1693)."""
    from kvpipe.models.formats.gguf import Rules

    model = recorded(LLAMA)
    rules = Rules(MIXES["Q4_K_M"], model, "Q4_K_M")
    types = [rules.type_of(weight) for weight in (model.weights or list)()]
    assert (types.count("Q4_K"), types.count("Q6_K"), types.count("F32")) == (193, 33, 65)


def by_hand(bits_of_linear: float) -> int:
    """Llama-3.1-8B: what 32 layers convert, and what stays in 16 bits."""
    linear = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    wide = 2 * 128256 * 4096 + 65 * 4096
    assert linear + wide == 8_030_261_248
    return round(linear * bits_of_linear / 8) + 2 * wide


@pytest.mark.parametrize(
    ("choice", "bits", "more"),
    [
        ("fp8", 8, 32 * 7 * 4),  # a 32-bit scale a matrix
        ("int8", 8, 32 * 2 * (4096 * 3 + 1024 * 2 + 14336 * 2)),  # a 16-bit scale a row
        ("int4", 4 + 16 / 128, 32 * 7 * 16),  # the shape of each matrix
        ("awq", 4 + 20 / 128, 0),
        ("gptq", 4 + 20 / 128, 32 * 4 * (6 * 4096 + 14336)),  # a group index a column
        ("nvfp4", 4.5, 32 * 7 * 8),
    ],
)
def test_a_quantiser_converts_the_layers_and_leaves_embedding_head_and_norms(choice, bits, more):
    assert stored(choice, recorded(LLAMA)).weight_bytes == by_hand(bits) + more


def test_a_module_that_is_named_stays_wide():
    model = recorded(LLAMA)
    options = shipped_option("weights", "awq")["quantization"]
    kept = stored("awq", model, quantization=options | {"modules_to_not_convert": ["down_proj"]})
    down = 32 * 14336 * 4096
    narrow = stored("awq", model).weight_bytes
    assert kept.weight_bytes == (narrow or 0) + down * 2 - down * (4 + 20 / 128) / 8


@pytest.mark.parametrize("choice", FORMATS)
def test_every_choice_is_at_home_in_a_request(choice):
    prepared = prepared_request(["model=llama", "device=h100_80gb", f"weights={choice}"]).prepared
    model = prepared.resolved.model
    assert 4e9 < model.bytes_of_weights(prepared.resolved.served_dtype) < 33e9
    assert model.is_converted == (choice not in ("published", "bf16", "fp16", "fp32"))
    if model.is_converted:
        assert sum(note.startswith("weights=") for note in model.notes) == 1


def test_a_checkpoint_of_that_kind_is_left_as_it_is_and_bf16_unpacks_it():
    request = ["model=deepseek_v3", "device=h200", "parallel.tensor_parallel_size=8"]
    published = prepared_request(request).prepared.resolved.model
    same = prepared_request([*request, "weights=fp8"]).prepared.resolved.model
    unpacked = prepared_request([*request, "weights=bf16"]).prepared.resolved.model
    assert same.weight_bytes == published.weight_bytes == 673_150_552_416
    assert unpacked.weight_bytes == 2 * 671_026_404_352


def test_where_only_a_count_is_known_a_quantiser_is_refused():
    section = yaml.safe_load((CONF_DIR / "model" / "llama.yaml").read_text())
    del section["config"]
    plugin = REGISTRIES["model"].get("preset")
    with pytest.raises(ConfigError, match="no reader knows the matrices of meta-llama"):
        stored("awq", plugin(plugin.Options(**section)).read())


def test_a_changed_count_and_an_unchanged_config_are_not_mixed():
    request = ["model=llama", "model.parameter_count=7000000000", "device=h100_80gb"]
    with pytest.raises(ConfigError, match=r"model\.config: expected 7,000,000,000 parameters"):
        prepared_request([*request, "weights=awq"])


def test_wrong_words_are_named_by_their_key():
    request = ["model=llama", "device=h100_80gb", "weights=awq", "weights.quantization.bits=99"]
    with pytest.raises(ConfigError, match=r"weights\.quantization\.bits: expected"):
        prepared_request(request)


def test_a_plan_for_another_checkpoint_says_what_its_line_lacks() -> None:
    asked = ["model=llama3_70b", "device=h200", "parallel=tp2", "backend=meta"]
    shown = [
        "\n".join(line.text for line in kvpipe.run([*asked, f"weights={kind}"]).answer.screen(80))
        for kind in ("awq", "fp8")
    ]
    assert "name a checkpoint in awq" in shown[0] and "vllm serve" not in shown[0]
    assert "--quantization fp8" in shown[1] and "name a checkpoint" not in shown[1]
