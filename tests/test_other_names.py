"""A file may write a key otherwise than its class saves it: as an alias, or as older files do."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from type_records import records

from kvpipe.errors import ConfigError
from kvpipe.models.config_file import parse_config
from kvpipe.models.families.classes import facts_of
from kvpipe.models.reading import read_geometry
from kvpipe.stages.validation.layers import as_released


def read(raw: dict[str, Any], name: str) -> tuple[Any, ...]:
    """What a file comes to, for comparing; ConfigError where it is refused."""
    model = read_geometry(parse_config(json.dumps(raw), "config.json", name, None))
    caches = [(c.name, c.spec, c.shares_with, str(c.fields)) for c in model.caches]
    return caches, model.context_length, model.num_layers, model.parameter_count


def text_part(raw: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The keys under which the part that generates lies, and that part."""
    path, part = [], raw
    facts = facts_of(str(raw.get("model_type")))
    while facts.text and isinstance(part.get(facts.text[0]), dict) and len(path) < 3:
        path.append(facts.text[0])
        part = part[facts.text[0]]
        facts = facts_of(str(part.get("model_type", facts.text[1])))
    return path, part


def with_part(raw: dict[str, Any], path: list[str], part: dict[str, Any]) -> dict[str, Any]:
    return part if not path else {**raw, path[0]: with_part(raw[path[0]], path[1:], part)}


# --- what a class takes for its own key ---
def aliased(raw: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The file with one key under each other name that its class takes for it."""
    path, part = text_part(raw)
    for other, own in facts_of(str(part.get("model_type"))).aliases.items():
        if part.get(own) is not None and other != own:
            renamed = {key: value for key, value in part.items() if key != own}
            yield other, with_part(raw, path, {**renamed, other: part[own]})


def differing(names: list[str]) -> tuple[list[str], int]:
    wrong, tried = [], 0
    for name in names:
        raw = records()[name].get("full")
        try:
            expected = read(raw, name)
        except (ConfigError, TypeError):  # refused by name, or no file of that type
            continue
        for other, renamed in aliased(raw):
            tried += 1
            try:
                found: Any = read(renamed, name)
            except ConfigError as error:
                found = expected if "whisper" in name else str(error)  # one name for two numbers
            if found != expected:
                wrong.append(f"{name}: {other}")
    return wrong, tried


def test_a_key_under_another_name_of_its_class_is_that_key() -> None:
    """Step's num_attention_groups are its num_key_value_heads."""
    wrong, tried = differing(sorted(records())[::12])
    assert not wrong and tried > 15


@pytest.mark.full
def test_every_other_name_of_every_class_is_read() -> None:
    wrong, tried = differing(sorted(records()))
    assert not wrong and tried > 250


# --- published Step 3.5 files ---
STEP = {
    "model_type": "step3p5", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_attention_groups": 2, "head_dim": 32, "vocab_size": 1024,
    "max_position_embeddings": 4096, "sliding_window": 16, "num_nextn_predict_layers": 1,
    "layer_types": ["full_attention", "sliding_attention"] * 2 + ["sliding_attention"],
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 12},
    "moe_layers_enum": "1,2,3", "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 64,
    "share_expert_dim": 64,
}  # fmt: skip


def test_step_as_it_is_published_is_what_its_class_makes_of_it() -> None:
    """Heads of window layers, experts by a list, and lists that count the prediction layer."""
    caches, _, layers, parameters = read(STEP, "step3p5")
    assert layers == 4 and [spec for _, spec, _, _ in caches] == ["full", "sliding"] * 2
    assert all("'num_kv_heads': 2" in fields for *_, fields in caches)
    assert parameters == 2_457_088  # vLLM's class has 12 more, which correct its routers
    fewer = {key: value for key, value in STEP.items() if key != "attention_other_setting"}
    assert read(fewer, "step3p5")[3] == parameters - 2 * 4 * (2 * 32 * 256 + 256)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("moe_layers_enum", "1,x", "moe_layers_enum: expected numbers of layers, got '1,x'"),
        ("moe_layers_enum", {}, "moe_layers_enum: expected a list of whole numbers"),
        ("attention_other_setting", 5, "attention_other_setting: expected settings"),
        ("layer_types", ["full_attention"] * 6, "layer_types: expected 4 entries"),
    ],
)
def test_what_is_wrong_in_a_step_file_is_named(key: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**STEP, key: value}, "step3p5")
    assert any(said in line for line in caught.value.lines())


# --- keys of older files that a class converts ---
# A value for each key that some class takes out of a file and turns into another.
OLDER: dict[str, Any] = {
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "sliding_window_pattern": 3,
    "full_attention_interval": 2, "global_attn_every_n_layers": 2, "num_nextn_predict_layers": 2,
    "sliding_window_size": 12, "block_ff_dim": 160, "mamba_n_groups": 2, "mamba_d_conv": 3,
    "mamba_expand": 4, "n_embed": 128, "no_rope_layer_interval": 2, "global_head_dim": 40,
    "num_global_key_value_heads": 4, "index_topk_freq": 2, "index_skip_topk_offset": 1,
    "dense_mlp_idx": 1, "dense_intermediate_size": 200, "num_experts": 8,
    "use_sliding_window": False, "compress_rate_csa": 8, "local_layer_ids": [0, 2],
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1], "qk_rope_head_dim": 8,
}  # fmt: skip
INSTEAD_OF_TYPES = ("sliding_window_pattern", "full_attention_interval", "local_layer_ids",
                    "global_attn_every_n_layers", "hybrid_layer_pattern")  # fmt: skip


def as_saved(raw: dict[str, Any], mapping: Any) -> dict[str, Any] | None:
    """What the class makes of the file; None where it refuses it."""
    try:
        config = mapping[raw["model_type"]].from_dict(copy.deepcopy(raw))
    except Exception:
        return None
    saved: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return saved


def older(raw: dict[str, Any], mapping: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    path, part = text_part(raw)
    if (kind := str(part.get("model_type"))) not in mapping:
        return
    source = inspect.getsource(mapping[kind])
    for key, value in OLDER.items():
        if re.search(rf'kwargs\.(pop|get)\("{key}"|"{key}" in kwargs', source):
            left = {k: v for k, v in part.items() if k != "layer_types"}
            base = left if key in INSTEAD_OF_TYPES else part
            yield key, with_part(raw, path, {**base, key: value})


@pytest.mark.full
def test_keys_of_older_files_are_read_as_the_class_converts_them() -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    tried = 0
    for name, record in sorted(records().items()):
        raw = record.get("sparse")
        if not raw or raw.get("model_type") not in CONFIG_MAPPING:
            continue
        for key, file in older(raw, CONFIG_MAPPING):
            try:
                found = read(file, name)
            except ConfigError:
                continue
            if (saved := as_saved(file, CONFIG_MAPPING)) is not None:
                tried += 1
                assert found == read(saved, name), f"{name}: {key}"
    assert tried > 25


# --- Inkling ---
def test_inkling_says_its_local_layers_by_number() -> None:
    raw = records()["inkling_text"]["sparse"]
    listed = {**{k: v for k, v in raw.items() if k != "layer_types"}, "local_layer_ids": [1, 3]}
    kinds = ["hybrid_sliding" if i in (1, 3) else "hybrid" for i in range(8)]
    assert read(listed, "inkling_text") == read({**raw, "layer_types": kinds}, "inkling_text")


@pytest.mark.parametrize("release", ["0.28.0", "0.33.0"])
def test_convolutions_that_an_engine_keeps_in_blocks_are_not_planned_as_states(
    release: str,
) -> None:
    """vLLM's class of Inkling: a window of 4 tokens of one row a K/V head."""
    raw = records()["inkling_text"]["sparse"]
    model = read_geometry(parse_config(json.dumps(raw), "config.json", "inkling", None))
    with pytest.raises(ConfigError, match="which keeps model.layers.0.sconv as a window"):
        as_released(model, release)
    assert as_released(model, "") is model
