"""What a refused model file is advised to do helps when it is done, or nothing is advised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_model_types import MEASURED, STRANGE, mutated
from type_records import records

from kvpipe.errors import ConfigError
from kvpipe.models.config_file import parse_config
from kvpipe.models.families.refused import REASONS
from kvpipe.models.reading import read_geometry

BY_HAND = "a copy of conf/model/llama.yaml as DIR/model/NAME.yaml, then --config-dir DIR model=NAME"
PROBE_HINT = "model.probe=true asks transformers instead"


def refusal(raw: dict[str, Any]) -> list[str]:
    """The lines of a refusal; none of a file that is read."""
    try:
        read_geometry(parse_config(json.dumps(raw), "config.json", "m", None))
    except ConfigError as error:
        return list(error.lines())
    return []


@pytest.mark.parametrize("name", sorted(REASONS))
def test_a_type_that_is_refused_is_to_be_written_by_hand(name: str) -> None:
    """Which test_the_advice_of_a_refusal_works does."""
    (line,) = refusal({"model_type": name, "architectures": ["SomeForCausalLM"]})
    assert REASONS[name] in line and line.endswith(BY_HAND)


def test_a_type_that_nobody_knows_is_asked_of_no_transformers_that_is_known() -> None:
    """Every type of transformers 5.24 has a family or a reason: only a newer one may know it."""
    line = refusal({"model_type": "nobodys", "architectures": ["NobodysForCausalLM"]})[0]
    assert BY_HAND in line and "where a newer transformers has the type" in line


def test_a_wrong_value_is_not_to_be_probed() -> None:
    """transformers refuses it, too, or builds a model that cannot be (no heads, no layers)."""
    seen = 0
    for number, name in enumerate(MEASURED[::9]):
        for turn, value in enumerate(STRANGE):
            raw = mutated(records()[name]["sparse"], 7 * number + 3 * turn, value)
            lines = refusal(raw)
            seen += bool(lines)
            assert not any(PROBE_HINT in line for line in lines), (name, lines)
    assert seen > 100


@pytest.mark.full
def test_where_a_probe_is_advised_it_answers() -> None:
    """Encoders that are asked to decode."""
    pytest.importorskip("transformers", reason="needs transformers and torch")
    from kvpipe.models.probe.as_engine import probe

    answered = 0
    for record in (records()[name] for name in MEASURED):
        asked = {"architectures": [str(record["class"])]} if answered % 2 else {"is_decoder": True}
        raw = {**record["sparse"], **asked}
        if any(PROBE_HINT in line for line in refusal(raw)):
            model = probe(parse_config(json.dumps(raw), "config.json", "m", None))
            assert {cache.spec for cache in model.caches} == {"full"}
            answered += 1
    assert answered >= 10
