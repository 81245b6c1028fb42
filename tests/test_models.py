"""Every preset says what the published model stores."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_facts import logical_bytes, models, recorded_layers, stored_layers

from kvpipe.errors import ConfigError
from kvpipe.front.words import words_to_overrides
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import config_file
from kvpipe.models.preset import PLUGIN
from kvpipe.models.reading import read_geometry
from kvpipe.registry import Registry
from kvpipe.specs.base import KVCacheSpec, SpecContext

CONF = Path(__file__).parents[1] / "conf" / "model"


def section(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return loaded


PRESETS = sorted(
    path.stem for path in CONF.glob("*.yaml") if section(path.stem)["reader"] == "preset"
)


def read(section: dict[str, Any]) -> ModelGeometry:
    return PLUGIN(PLUGIN.Options.model_validate(section)).read()


def recorded(model: ModelGeometry) -> dict[str, Any] | None:
    return models().get(model.name) or models().get(f"{model.name} (text)")


def test_there_are_presets_of_at_least_25_families() -> None:
    families = {entry["model_type"] for name in PRESETS if (entry := recorded(read(section(name))))}
    assert len(families) >= 25, sorted(families)


CERTAIN = [name for name in PRESETS if (recorded(read(section(name))) or {}).get("certain")]


@pytest.mark.parametrize("name", CERTAIN)
def test_a_preset_stores_what_the_published_model_stores(name: str) -> None:
    model = read(section(name))
    entry = recorded(model)
    assert entry is not None
    assert stored_layers(model) == recorded_layers(entry)
    assert model.parameter_count == entry["parameter_count"]
    assert model.file_dtype == entry["torch_dtype"]
    assert model.num_layers == entry["num_layers"]
    if entry.get("max_position_embeddings"):
        assert model.context_length == entry["max_position_embeddings"]


WITH_CONFIG = [name for name in PRESETS if section(name).get("config")]


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_a_preset_is_what_the_published_config_it_came_from_says(name: str) -> None:
    values = section(name)
    preset, published = read(values), read_geometry(config_file(values["config"], values["name"]))
    for field in fields(ModelGeometry):
        if field.compare and field.name not in ("source", "notes"):
            assert getattr(preset, field.name) == getattr(published, field.name), field.name
    assert values["source"]


UNITS = {"": 1, "M": 10**6, "B": 10**9, "T": 10**12}


def test_a_preset_has_as_many_parameters_as_its_publisher_counts() -> None:
    """All digits where they are published; a rounded count ("235B") to three in a hundred."""
    compared = 0
    for name in WITH_CONFIG:
        values = section(name)
        if (said := values.get("published")) and (match := PUBLISHED.fullmatch(said)):
            expected = float(match[1]) * UNITS[match[2]]
            allowed = 0.03 if match[2] else 1e-7
            assert abs(values["parameter_count"] / expected - 1) <= allowed, (name, said)
            compared += 1
    assert compared >= 100


PUBLISHED = re.compile(r"([0-9.]+)([MBT]?)")


def test_there_are_a_hundred_presets_from_a_published_config() -> None:
    names = {section(name)["name"] for name in WITH_CONFIG}
    assert len(names) == len(WITH_CONFIG) >= 100


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_a_preset_is_found_by_its_names(name: str) -> None:
    hub = section(name)["name"]
    for said in (hub, hub.upper(), hub.rpartition("/")[2], hub.rpartition("/")[2].casefold()):
        assert words_to_overrides([said]) == [f"model={name}"], said


def test_other_weights_of_one_config_keep_their_name() -> None:
    said = "Qwen/Qwen3-235B-A22B-Instruct-2507"
    expected = ["model=qwen3_235b_a22b_thinking_2507", f"model.name='{said}'"]
    assert words_to_overrides([said]) == expected
    assert words_to_overrides(["qwen3-235b-a22b-instruct-2507"]) == expected[:1]


def test_enough_presets_are_compared_with_certain_records() -> None:
    assert len(CERTAIN) >= 40


# Bytes of one request of 32,768 tokens, 16 bits a number, published in a comparison of planners.
BYTES_AT_32K = {
    "llama": 4_294_967_296,
    "llama3_70b": 10_737_418_240,
    "qwen3_32b": 8_589_934_592,
    "gemma3_27b": 3_120_562_176,
    "deepseek_v3": 2_302_672_896,
    "gpt_oss_20b": 808_452_096,
    "mamba_2_8b": 12_451_840,
    "jamba": 545_587_200,
    "mistral_7b": 536_870_912,
    "llama4_scout": 2_818_572_288,
    "gemma3n_e4b": 285_212_672,
    "whisper_large_v3": 319_160_320,  # 448 own tokens and 1,500 of the encoder
}


@pytest.mark.parametrize("name", BYTES_AT_32K)
def test_bytes_of_a_long_request_are_exact(name: str) -> None:
    assert logical_bytes(read(section(name)), 32_768) == BYTES_AT_32K[name]


def test_a_float32_recurrent_state_takes_twice_its_bytes() -> None:
    assert logical_bytes(read(section("qwen3_next")), 32_768, ssm_bytes=4) == 882_573_312
    assert logical_bytes(read(section("mamba_2_8b")), 32_768, ssm_bytes=4) == 22_937_600
    assert logical_bytes(read(section("jamba")), 0, ssm_bytes=4) == 16_056_320


def test_gemma_3n_stores_20_of_its_35_layers() -> None:
    model = read(section("gemma3n_e4b"))
    sharing = {c.layer: c.shares_with for c in model.caches if c.shares_with}
    assert len(model.caches) - len(sharing) == 20
    assert set(sharing) == set(range(20, 35))
    assert {layer: name for layer, name in sharing.items() if layer % 5 == 4} == {
        layer: "model.layers.19.self_attn.attn" for layer in (24, 29, 34)
    }
    assert set(sharing.values()) == {
        "model.layers.18.self_attn.attn",
        "model.layers.19.self_attn.attn",
    }


def test_longformer_has_twelve_encoder_only_layers() -> None:
    model = read(section("longformer"))
    assert [c.spec for c in model.caches] == ["encoder_only"] * 12
    assert logical_bytes(model, 4096) == 0


@pytest.mark.parametrize("name", PRESETS)
def test_cache_names_have_one_layer_index_and_are_unique(name: str) -> None:
    model = read(section(name))
    names = [c.name for c in model.caches]
    assert len(set(names)) == len(names)
    for cache in model.caches:
        assert [part for part in cache.name.split(".") if part.isdigit()] == [str(cache.layer)]


def test_a_pattern_is_cut_where_the_layers_end() -> None:
    model = read(section("gemma3_27b"))
    assert [c.layer for c in model.caches if c.spec == "full"] == list(range(5, 62, 6))
    assert [c.spec for c in model.caches[-2:]] == ["sliding", "sliding"]


def broken(**layers: Any) -> dict[str, Any]:
    good = section("llama")
    return good | {"layers": good["layers"] | layers}


def test_every_mistake_of_a_preset_is_reported_at_once() -> None:
    kinds = {
        "attention": {"self_attn.attn": {"num_kv_heads": 8}},
        "spare": {},
        "shared": {"self_attn.attn": {"shares_with": 99}},
    }
    with pytest.raises(ConfigError) as caught:
        read(broken(pattern=["atention", "attention x 40", "shared"], kinds=kinds))
    keys = [problem.key for problem in caught.value.problems]
    assert keys == [
        "model.layers.pattern",
        "model.layers.pattern",
        "model.layers.kinds.spare",
        "model.layers.kinds.attention.self_attn.attn",
        "model.layers.kinds.shared.self_attn.attn.shares_with",
    ]


def test_an_unknown_kind_of_layer_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'atention'; did you mean 'attention'"):
        read(broken(pattern=["atention", "attention"]))


def test_a_pattern_longer_than_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at most 32 layers .* got 33"):
        read(broken(pattern=["attention x 33"]))


def test_a_cache_needs_a_kind() -> None:
    kinds = {"attention": {"self_attn.attn": {"head_size": 8}}}
    with pytest.raises(ConfigError, match="expected spec: <kind of cache>"):
        read(broken(kinds=kinds))


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ({"shares_with": 1}, "expected a layer that stores its own self_attn.attn, got 1"),
        ({"shares_with": "0"}, "expected a layer that stores its own self_attn.attn, got 0"),
        ({"shares_with": 0, "spec": "full"}, "expected shares_with alone"),
    ],
)
def test_a_wrong_target_of_sharing_is_refused(cache: dict[str, Any], message: str) -> None:
    own = {"self_attn.attn": {"spec": "full", "num_kv_heads": 8, "head_size": 128}}
    kinds = {"attention": own, "shared": {"self_attn.attn": cache}}
    with pytest.raises(ConfigError, match=message):
        read(broken(pattern=["attention", "shared"], kinds=kinds))


def test_a_kind_that_no_layer_has_is_refused() -> None:
    kinds = section("llama")["layers"]["kinds"] | {"spare": {}}
    with pytest.raises(ConfigError, match="kinds.spare: expected a kind that occurs"):
        read(broken(kinds=kinds))


CONTEXT = SpecContext(
    block_size=16,
    dtype="bfloat16",
    cache_dtype="auto",
    model_dtype="bfloat16",
    conv_dtype="bfloat16",
    ssm_dtype="bfloat16",
    max_model_len=4096,
)


def specs(model: ModelGeometry) -> list[KVCacheSpec]:
    registry: Registry[type[KVCacheSpec]] = Registry("spec", "kvpipe.specs", "kvpipe.specs")
    return [registry.get(c.spec).from_geometry(c.fields, CONTEXT) for c in model.caches]


@pytest.mark.parametrize("name", PRESETS)
def test_every_cache_of_a_preset_becomes_a_spec_that_two_ranks_can_share(name: str) -> None:
    for spec in specs(read(section(name))):
        assert spec.shard(1) == spec
        heads = getattr(spec, "num_kv_heads", 2)
        ranks = heads if heads > 1 and heads % 2 else 2  # five heads are split by five
        assert spec.shard(ranks).page_size_bytes <= spec.page_size_bytes


def test_groups_of_a_mamba_2_convolution_are_replicated_when_there_are_more_ranks() -> None:
    model = read(section("granite4"))  # 3,072 channels and one group of 2 * 128 rows
    (state,) = {spec for spec in specs(model) if spec.is_state}
    assert [array.shape for array in state.shard(4).page_arrays()] == [
        (768 + 256, 3),
        (12, 64, 128),
    ]
