"""Running engines that kvpipe plans only: `pytest -m live`, after `python tools/live/setup.py ...`.

Each test is skipped, with the command that makes its environment, where that does not stand.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.environments import missing  # noqa: E402
from tools.live.planned_matrix import PLANNED, planned_answers, planned_records  # noqa: E402

pytestmark = pytest.mark.live
# A few seconds each; the whole matrix is the tool's.
FEW = {
    "transformers": ("llama", "gemma3-10-4", "gemma3n", "llama4", "llama 4 MiB"),
    "llama-cpp": ("llama", "gemma3", "deepseek2", "jamba", "gemma3 4 streams", "llama q8_0 q8_0"),
}


@pytest.mark.parametrize("engine", PLANNED)
def test_a_plan_is_what_the_engine_makes_of_the_same_bytes(engine: str) -> None:
    if command := missing([engine]):
        pytest.skip(f"no {engine}: {command}")
    others = [case.name for case in PLANNED[engine].cases() if case.name not in FEW[engine]]
    answers = planned_answers(engine, "", known=others)
    assert set(answers) == set(FEW[engine])
    wrong = {r["case"]: r["differences"] for r in planned_records(engine, answers)}
    assert not any(wrong.values()), wrong
    assert any(answer["started"] for answer in answers.values())
