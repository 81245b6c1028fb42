"""Every number of whole plans and single specs, as vLLM 0.17 and 0.33 themselves answer them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import golden_plans
import pytest
from golden_files import GOLDEN, golden_cases

Golden = Callable[[str], list[dict[str, Any]]]
# Cases in the copy that ships here; other folders (--golden-dir) may hold any number.
SHIPPED = {"plan_vllm017": 271, "plan_vllm033": 287, "specs": 133}


def differences(
    cases: list[dict[str, Any]], answer: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[str]:
    found = []
    for case in cases:
        got = answer(case["input"])
        if got != case["answer"]:
            found.append(f"{case['id']}: {first_difference(got, case['answer'])}")
    return found


def first_difference(got: Any, expected: Any, where: str = "answer") -> str:
    if isinstance(got, dict) and isinstance(expected, dict):
        for key in [*expected, *(k for k in got if k not in expected)]:
            if got.get(key) != expected.get(key) or (key in got) != (key in expected):
                return first_difference(got.get(key), expected.get(key), f"{where}.{key}")
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            if a != b:
                return first_difference(a, b, f"{where}[{i}]")
    return f"{where}: got {json.dumps(got)[:300]}, expected {json.dumps(expected)[:300]}"


def check(golden: Golden, name: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    cases = golden(name)
    ran = [case["id"] for case in cases]
    wrong = differences(cases, answer)
    print(f"{name}: {len(ran)} cases ran, {len(wrong)} differ")
    assert ran and len(set(ran)) == len(ran)
    assert not wrong, f"{len(wrong)} of {len(ran)} differ:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("name", ["plan_vllm017", "plan_vllm033"])
def test_every_plan_is_the_one_vllm_makes(golden: Golden, name: str) -> None:
    check(golden, name, golden_plans.answer)


def test_every_spec_has_the_page_and_the_bound_that_vllm_gives_it(golden: Golden) -> None:
    check(golden, "specs", golden_plans.spec_answer)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_copy_is_whole(name: str) -> None:
    assert len(golden_cases(str(GOLDEN), name)) == SHIPPED[name]


def test_a_changed_number_is_noticed(golden: Golden) -> None:
    case = golden("plan_vllm017")[0]
    changed = json.loads(json.dumps(case))
    changed["answer"]["num_blocks"] += 1
    assert differences([case], golden_plans.answer) == []
    assert "answer.num_blocks" in differences([changed], golden_plans.answer)[0]
