"""Engines that kvpipe plans only, against what they did when they were started (docs/live.md).

The answers were recorded by tools/live/matrix.py; kvpipe is asked anew. tests/live starts them.
"""

from __future__ import annotations

import gzip
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.live.planned_matrix import PLANNED, planned_records  # noqa: E402

Json = dict[str, Any]
RECORDED = Path(__file__).parent / "facts" / "live_answers.json.gz"
# Of each kind of cache and of each rule one; all of them are asked in the full tier.
FEW = {
    "transformers": ("gemma3n", "gemma3-10-4", "llama more requests than tokens", "llama4"),
    "llama-cpp": (
        "gemma3 9 sequences, ubatch 64",
        "phi3",
        "jamba",
        "deepseek2",
        "llama 257 sequences",
    ),
}


@cache
def recorded() -> dict[str, Json]:
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        return json.load(file)


# The build that was started reads no list of windows in a gemma3 file; 0c1e57098 does.
OLDER = {"gemma3-listed"}


def differing(engine: str, answers: Json) -> dict[str, list[str]]:
    found = planned_records(engine, answers)
    return {record["case"]: record["differences"] for record in found if record["differences"]}


@pytest.mark.parametrize("engine", FEW)
def test_a_plan_is_what_the_running_engine_made_of_the_same_bytes(engine: str) -> None:
    answers = {name: recorded()[engine][name] for name in FEW[engine]}
    assert differing(engine, answers) == {}


@pytest.mark.full
@pytest.mark.parametrize("engine", FEW)
def test_every_plan_is_what_the_running_engine_made(engine: str) -> None:
    answers = recorded()[engine]
    assert set(answers) == {case.name for case in PLANNED[engine].cases()}
    assert set(differing(engine, answers)) == OLDER & set(answers)


def test_an_answer_that_is_off_by_one_sector_is_told() -> None:
    answer = recorded()["transformers"]["gemma3-10-4"]
    off = {**answer, "sectors": answer["sectors"] + 1}
    (told,) = differing("transformers", {"gemma3-10-4": off})["gemma3-10-4"]
    assert told == f"sectors: kvpipe {answer['sectors']}, the engine {answer['sectors'] + 1}"
