"""Against transformers itself: each tiny model runs again, and each optional key is left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from type_records import differences, records

from kvpipe.errors import ConfigError
from kvpipe.models.config_file import parse_config
from kvpipe.models.families import families
from kvpipe.models.reading import read_geometry

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

MEASURED = sorted(name for name, record in records().items() if "self" in record)
STORED_OTHERWISE = {"minicpm3"}
OPTIONAL = ("head_dim", "num_key_value_heads", "sliding_window", "kv_lora_rank", "num_experts")
FLAT = sorted(n for n in MEASURED if records()[n]["text_type"] == n and n in families())


def measured(model_type: str, raw: dict[str, Any]) -> dict[str, Any]:
    """The record of that file, measured now."""
    transformers = pytest.importorskip("transformers")
    from measure_types import measured as measure
    from measure_types import speaking_part

    transformers.logging.set_verbosity_error()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    def of(name: str, values: dict[str, Any]) -> dict[str, Any]:
        config = CONFIG_MAPPING[name](**{k: v for k, v in values.items() if k != "model_type"})
        if records()[model_type].get("whole_failed"):
            config = speaking_part(config)
        found: dict[str, Any] = measure(config)
        return found

    values = deepcopy(raw)
    try:
        return of(model_type, values)
    except Exception:  # the whole cannot be made tiny: its part was measured alone
        if values.keys() != {"model_type", "text_config"}:
            raise
        part = deepcopy(raw)["text_config"]
        return of(part["model_type"], part)


def planned_wrong(name: str, raw: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Where the plan differs; nothing where the file is refused by name."""
    try:
        model = read_geometry(parse_config(json.dumps(raw), "config.json", name, None))
    except ConfigError:
        return []
    return [] if name in STORED_OTHERWISE else differences(model, record)


@pytest.mark.full
@pytest.mark.parametrize("name", MEASURED)
def test_the_plan_is_what_the_model_caches_now(name: str) -> None:
    raw = records()[name]["sparse"]
    found = measured(name, raw)
    assert found["self"] == records()[name]["self"]
    assert not planned_wrong(name, raw, found)


@pytest.mark.full
@pytest.mark.parametrize("prompt", [5, 9])
def test_melody_and_prompt_stand_before_the_sound_in_musicgens_cache(prompt: int) -> None:
    """Why it is refused: the rows of 9, 10 and 64 tokens depend on a prompt of any length."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    raw = records()["musicgen_melody"]["sparse"]
    values = {key: value for key, value in deepcopy(raw).items() if key != "model_type"}
    config = transformers.MusicgenMelodyConfig(**values)
    model = transformers.MusicgenMelodyForConditionalGeneration(config).eval()
    books = config.decoder.num_codebooks
    for tokens in (9, 10, 64):
        sound = torch.full((books, tokens), 3)
        told = {"input_ids": torch.full((1, prompt), 3), "decoder_input_ids": sound}
        with torch.no_grad():
            cache = model(**told, use_cache=True).past_key_values.self_attention_cache
        rows = {layer.keys.shape[-2] for layer in cache.layers}
        assert rows == {config.chroma_length + prompt + tokens}


# The class derives the rank of each window layer from a list that is as long as the tiny file's.
DERIVED_BY_LAYER = {("dots3_note_text", "num_hidden_layers")}


def without(raw: dict[str, Any], key: str) -> dict[str, Any]:
    """The file, a key of its text part left out."""
    part = raw.get("text_config")
    if isinstance(part, dict):
        return {**raw, "text_config": {k: v for k, v in part.items() if k != key}}
    return {k: v for k, v in raw.items() if k != key}


def as_its_class_saves_it(name: str, raw: dict[str, Any]) -> dict[str, Any] | None:
    """The file with what its class supplies; None where the class needs the key, too."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {k: v for k, v in deepcopy(raw).items() if k != "model_type"}
    try:
        text = CONFIG_MAPPING[name](**values).to_json_string(use_diff=False)
    except Exception:  # each class refuses in its own way
        return None
    found: dict[str, Any] = json.loads(text)
    return found


# Without this section towers are not counted, which a note says; the text part is the same.
TOWERS_LIE_IN = "thinker_config"


def said(raw: dict[str, Any], name: str, without_towers: bool) -> tuple[Any, ...]:
    try:
        model = read_geometry(parse_config(json.dumps(raw), "config.json", name, None))
    except ConfigError:
        return ()
    return model.caches, (model.parameter_count or 0) - without_towers * model.tower_parameters


@pytest.mark.full
def test_whatever_key_is_left_out_its_class_says_what_is_read() -> None:
    """Every type, every key: the file without it is read as the file that its class fills up."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    tried, wrong = 0, []
    for name in MEASURED:
        raw = records()[name]["sparse"]
        for key in raw.get("text_config", raw):
            less = without(raw, key)
            whole = as_its_class_saves_it(name, less) if key != "model_type" else None
            if whole is None or (name, key) in DERIVED_BY_LAYER:
                continue
            tried += 1
            alone = key == TOWERS_LIE_IN
            if said(less, name, alone) != said(whole, name, alone):
                wrong.append((name, key))
    assert not wrong
    assert tried > 2500


def leavings() -> Iterator[tuple[str, str]]:
    for name in FLAT:
        yield from ((name, key) for key in OPTIONAL if key in records()[name]["sparse"])


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "key"), list(leavings()))
def test_an_optional_key_that_is_left_out_means_what_its_class_says(name: str, key: str) -> None:
    raw = {k: v for k, v in records()[name]["sparse"].items() if k != key}
    try:
        found = measured(name, raw)
    except Exception as error:  # without the key the class builds no model of these sizes
        pytest.skip(f"{type(error).__name__}: {error}"[:80])
    assert not planned_wrong(name, raw, found)
