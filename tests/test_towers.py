"""Parameters of towers, and of the whole model, are those of transformers' own classes.

Recorded from the meta device for tiny and drawn settings (tests/facts/README.md); the nightly tier
draws anew and builds again.
"""

from __future__ import annotations

import gzip
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.reading import read_geometry
from kvpipe.models.towers.table import JOINTS
from kvpipe.models.weight import Ranks
from kvpipe.plugins import REGISTRIES
from kvpipe.request.confdir import shipped_option

TOOLS = Path(__file__).parents[1] / "tools"
FILE = Path(__file__).parent / "facts" / "transformers_towers.json.gz"
# A file, parameters of its towers and of the whole model.
Setting = tuple[dict[str, Any], int, int]


@cache
def records() -> dict[str, list[Setting]]:
    loaded: dict[str, list[Setting]] = json.loads(gzip.decompress(FILE.read_bytes()))
    return loaded


def read(raw: dict[str, Any]) -> ModelGeometry:
    return read_geometry(parse_config(json.dumps(raw), "config.json", raw["model_type"], None))


def difference(raw: dict[str, Any], towers: int, whole: int) -> str:
    """Where the file is read otherwise than its class is built; nothing where all is equal."""
    try:
        model = read(raw)
    except ConfigError as error:
        return " ".join(error.lines())
    said = f"{towers:,} of the parameters are of towers beside the text part"
    if model.tower_parameters != towers or said not in model.notes:
        return f"towers {model.tower_parameters:,}, of the class {towers:,}"
    if model.parameter_count != whole:
        return f"whole {model.parameter_count}, of the class {whole:,}"
    return ""


# Types whose text part has no row of weights: nothing of them is counted.
WITHOUT_TEXT = {"mistral_large4"}


def wrong(share: slice) -> dict[str, str]:
    """Type -> the first difference among that share of its settings."""
    found = {}
    for number, name in enumerate(sorted(JOINTS.keys() & records().keys() - WITHOUT_TEXT)):
        settings = records()[name]
        chosen = settings[share] if share.step is None else [settings[number % len(settings)]]
        said = next(filter(None, (difference(*setting) for setting in chosen)), "")
        if said:
            found[name] = said
    return found


def test_towers_and_wholes_are_those_of_the_meta_model_in_a_setting_of_each_type() -> None:
    assert not wrong(slice(None, None, 2))


@pytest.mark.full
def test_towers_and_wholes_are_those_of_the_meta_model_in_every_setting() -> None:
    assert not wrong(slice(None))
    assert sum(len(settings) for settings in records().values()) >= 400


def test_every_type_whose_towers_are_counted_was_built() -> None:
    assert not JOINTS.keys() - records().keys()


# Towers that transformers takes from the timm package, which opens images with PIL.
OF_TIMM = {"gemma3n", "fast_vlm"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(JOINTS))
def test_settings_drawn_now_are_counted_as_the_class_is_built(name: str) -> None:
    pytest.importorskip("transformers")
    for package in ("timm", "PIL") if name in OF_TIMM else ():
        pytest.importorskip(package, reason=f"the towers of {name} need the package {package}")
    sys.path.insert(0, str(TOOLS))
    from measure_towers import measured

    settings = measured(name, 2, 3)
    assert settings, "nothing could be built, so nothing was compared"
    assert not [said for setting in settings if (said := difference(*setting))]


# --- what a class builds that the file does not name --------------------------------------------
NEMOTRON = {
    "model_type": "nemotron_h_omni",
    "text_config": {
        "model_type": "nemotron_h", "hidden_size": 64, "intermediate_size": 96, "head_dim": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mamba_head_dim": 16,
        "mamba_num_heads": 8, "ssm_state_size": 16, "vocab_size": 512,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "towers", "whole"),
    [
        ({}, 674_932_224, 676_073_048),
        ({"vision_config": None}, 674_932_224, 676_073_048),
        ({"vit_hidden_size": 640}, 664_443_904, 665_584_728),
        ({"vit_hidden_size": 640, "vision_hidden_size": 320}, 659_199_744, 660_340_568),
    ],
)
def test_a_tower_that_the_class_builds_without_a_section_is_counted(
    more: dict[str, Any], towers: int, whole: int
) -> None:
    """As counted on the meta device: RADIO and its joint, whose width has an older name."""
    assert not difference(NEMOTRON | more, towers, whole)


@pytest.mark.parametrize("key", ["audio_config", "sound_config"])
def test_with_a_tower_by_choice_that_is_not_known_no_tower_is_counted(key: str) -> None:
    model = read(NEMOTRON | {key: {"num_hidden_layers": 1}})
    assert model.tower_parameters == 0
    assert any("other towers are not counted" in note for note in model.notes)


def test_frames_that_the_whole_and_its_tower_say_otherwise_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        read(NEMOTRON | {"video_temporal_patch_size": 4})
    expected = "video_temporal_patch_size: expected 2, as in vision_config, got 4"
    assert [line for line in caught.value.lines() if expected in line]


def test_voxtral_without_its_section_has_the_tower_of_its_class() -> None:
    text = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "head_dim": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 8,
        "vocab_size": 512,
    }  # fmt: skip
    raw = {"model_type": "voxtral", "text_config": text}
    assert not difference(raw, 637_300_736, 637_662_272)


def test_a_name_that_steps_class_overwrites_says_nothing_of_its_experts() -> None:
    """num_local_experts is set before n_routed_experts, whose default of 288 then takes its place;
    moe_num_experts, as published, comes after."""
    raw = records()["step3p7"][0][0]
    text = {k: v for k, v in raw["text_config"].items() if k != "n_routed_experts"}

    def count(**more: int) -> int | None:
        return read({**raw, "text_config": {**text, **more}}).parameter_count

    assert count(num_local_experts=4) == count(n_routed_experts=288)
    assert count(moe_num_experts=4) == count(n_routed_experts=4) != count(num_local_experts=4)


def test_experts_of_ernie_without_widths_are_as_wide_as_its_class_says() -> None:
    raw = records()["ernie4_5_vl_moe"][0][0]
    text = raw["text_config"]
    less = {**raw, "text_config": {k: v for k, v in text.items() if k != "moe_intermediate_size"}}
    said = {**raw, "text_config": {**text, "moe_intermediate_size": [1536, 512]}}
    assert read(less).parameter_count == read(said).parameter_count
    assert read(less).expert_size == 1536
    for wrong in ([], [1536], None):
        with pytest.raises(ConfigError, match="a width for text and one for images"):
            read({**raw, "text_config": {**text, "moe_intermediate_size": wrong}})


# --- in other formats, and over ranks -----------------------------------------------------------
QWEN = {
    "model_type": "qwen2_5_vl",
    "torch_dtype": "bfloat16",
    "text_config": {"model_type": "qwen2_5_vl_text", "num_hidden_layers": 2},
}
SEEING = {"vision_config": {"depth": 2}}


def stored(choice: str, raw: dict[str, Any]) -> int:
    section = shipped_option("weights", choice)
    plugin = REGISTRIES["weights"].get(section["name"])
    num_bytes = plugin(plugin.Options(**section)).stored(read(raw)).weight_bytes
    assert isinstance(num_bytes, int)
    return num_bytes


@pytest.mark.parametrize("choice", ["fp8", "int8", "int4", "awq", "gptq", "nvfp4", "mxfp4"])
def test_a_quantiser_leaves_towers_as_wide_as_the_file(choice: str) -> None:
    whole = QWEN | SEEING
    assert stored(choice, whole) - stored(choice, QWEN) == 2 * read(whole).tower_parameters


def test_a_quantised_checkpoint_has_towers_as_wide_as_its_file() -> None:
    told = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    both, text = read(QWEN | SEEING | told), read(QWEN | told)
    assert both.weight_bytes is not None and text.weight_bytes is not None
    assert both.weight_bytes - text.weight_bytes == 2 * both.tower_parameters


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_ranks_of_the_first_stage_share_the_towers_and_other_stages_hold_none(tp: int) -> None:
    both, text = read(QWEN | SEEING).rank_parameters, read(QWEN).rank_parameters
    assert both is not None and text is not None
    towers = read(QWEN | SEEING).tower_parameters
    first, last = (Ranks(tp=tp), range(0, 1), True, False), (Ranks(tp=tp), range(1, 2), False, True)
    assert both(*first) - text(*first) == towers // tp
    assert both(*last) == text(*last)
