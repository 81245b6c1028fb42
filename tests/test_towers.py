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
    assert not JOINTS.keys() - records().keys() - set(NOT_BUILT)


# Their towers come from another package.
NOT_BUILT = ("gemma3n", "fast_vlm", "perception_lm")


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(JOINTS))
def test_settings_drawn_now_are_counted_as_the_class_is_built(name: str) -> None:
    pytest.importorskip("transformers")
    sys.path.insert(0, str(TOOLS))
    from measure_towers import measured

    assert not [said for setting in measured(name, 2, 3) if (said := difference(*setting))]
