"""A plan stores what vLLM's own class for that architecture says that its layers store."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_classes import records, stored_by_engine, stored_by_plan, text_parameters

from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.reading import read_geometry
from kvpipe.stages.validation.layers import as_released

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

# Types whose classes come with their checkpoints: no cache of transformers' says what they keep.
REMOTE = sorted(name for name, record in records().items() if record["remote"])


def read(config: Any, name: str) -> ModelGeometry:
    return read_geometry(parse_config(json.dumps(config), "config.json", name, None))


@pytest.mark.parametrize("name", sorted(records()))
def test_every_layer_stores_what_the_engines_class_says(name: str) -> None:
    record = records()[name]
    model = read(record["config"], name)
    assert stored_by_plan(model, record["release"]) == stored_by_engine(record)


def test_types_without_a_class_in_transformers_are_among_them() -> None:
    assert len(REMOTE) >= 24
    assert len(records()) >= 200


# Parameters of vLLM's class that a checkpoint has not, or that transformers keeps as buffers: what
# corrects a router, the experts of each token of the vocabulary, a second head beside tied
# embeddings, biases of a whole head; or towers that its class keeps under the text's names.
OTHERWISE = {
    "AXK1ForCausalLM", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM", "Lfm2MoeForCausalLM",
    "SarvamMLAForCausalLM", "KimiK25ForConditionalGeneration", "MiniCPMOcrForConditionalGeneration",
    "PhiForCausalLM", "PhiMoEForCausalLM", "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5OmniModel", "WhisperForConditionalGeneration", "Idefics3ForConditionalGeneration",
    "SmolVLMForConditionalGeneration", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
    "HYV3ForCausalLM", "LongcatFlashForCausalLM", "MiniMaxM2ForCausalLM", "SarvamMoEForCausalLM",
    "DeepseekV4ForCausalLM", "KimiVLForConditionalGeneration", "Step3p5ForCausalLM",
    "FunASRForConditionalGeneration", "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
}  # fmt: skip


def test_parameters_of_the_part_that_generates_are_those_of_the_engines_class() -> None:
    equal, unequal = set(), set()
    for name, record in records().items():
        model = read(record["config"], name)
        if model.parameter_count is None:
            continue
        count = model.parameter_count - model.tower_parameters
        agrees = count in (text_parameters(record), record["parameters"])
        (equal if agrees else unequal).add(name)
    assert not unequal - OTHERWISE
    assert len(equal) >= 154
    assert len(equal & set(REMOTE)) >= 11


@pytest.mark.parametrize(("release", "seen"), [("", 16), ("0.28.0", 16), ("0.32.0", 17)])
def test_a_window_is_as_wide_as_the_planned_release_reads_it(release: str, seen: int) -> None:
    record = records()["Cohere2ForCausalLM"]
    model = as_released(read(record["config"], "cohere2"), release)
    assert {c.fields["sliding_window"] for c in model.caches if c.spec == "sliding"} == {seen}


def test_a_class_that_stores_otherwise_would_show() -> None:
    """Solar has a window in every layer; a reader that leaves it out is seen."""
    record = records()["SolarForCausalLM"]
    without = record["config"] | {"sliding_window": None}
    assert stored_by_plan(read(without, "solar"), record["release"]) != stored_by_engine(record)


def test_the_table_of_architectures_says_how_each_is_read_and_what_it_was_held_against() -> None:
    from architectures import PAGE, table

    lines = (ROOT / "tools" / "architectures.tsv").read_text("utf-8").splitlines()
    assert "\n".join(table(lines)) in PAGE.read_text("utf-8"), "run tools/architectures.py"
