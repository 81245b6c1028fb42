"""Nobody outside `specs/` knows a kind by its name: rename one, and every plan stays the same."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import golden_plans
import pytest

import kvpipe
from kvpipe.engines.base import EngineRules
from kvpipe.engines.versions import DISTINCT, rules_of
from kvpipe.errors import KvpipeError
from kvpipe.plugins import REGISTRIES, SPECS
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.grouping.planning import plan

GOLDEN = ("plan_vllm017", "plan_vllm033")
LIMITS = RequestLimits(max_model_len=4096, max_num_batched_tokens=512, max_encoder_tokens=100)
HEADS: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "dtype": "bfloat16"}
RULES = [REGISTRIES["engine"].get("kvpipe"), *(rules_of(version) for version in DISTINCT)]
ROOMS = ("stages", "engines", "blocks", "report", "answers", "cache", "layouts", "request", "front")


@pytest.fixture
def rename(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Gives every registered kind another name."""

    def renamed() -> None:
        for name in SPECS.names():
            monkeypatch.setattr(SPECS.get(name), "kind", f"re{name}named")

    return renamed


def as_before(text: str) -> str:
    """Renamed kinds, by their old names."""
    for name in SPECS.names():
        text = text.replace(f"re{name}named", name)
    return text


def answers(cases: list[dict[str, Any]]) -> list[Any]:
    return [json.loads(as_before(json.dumps(golden_plans.answer(c["input"])))) for c in cases]


def in_order(answer: Any) -> Any:
    """Lists of kinds are sorted by name, which is all that a name may change."""
    if isinstance(answer, dict):
        return {
            key: sorted(value) if key == "layer_kinds" else in_order(value)
            for key, value in answer.items()
        }
    return [in_order(item) for item in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_plans_stay_when_kinds_are_renamed(golden: Any, name: str, rename: Any) -> None:
    cases = golden(name)[::9]
    rename()
    assert in_order(answers(cases)) == in_order([case["answer"] for case in cases])


@pytest.mark.full
@pytest.mark.parametrize("name", GOLDEN)
def test_all_golden_plans_stay_when_kinds_are_renamed(golden: Any, name: str, rename: Any) -> None:
    cases = golden(name)
    rename()
    assert in_order(answers(cases)) == in_order([case["answer"] for case in cases])


def mixes() -> Iterator[list[KVCacheSpec]]:
    """Every two kinds side by side, of equal pages and of unequal ones."""
    kinds = [SPECS.get(name).examples()[-1] for name in SPECS.names()]
    for one in kinds:
        for other in kinds:
            yield [one, *[other] * 3]
            yield [one, other.with_padded_page(3 * other.page_size_bytes), one]


def everything_planned() -> list[str]:
    found = []
    for rules in RULES:
        for layout in EngineRules.LAYOUTS:
            for specs in mixes():
                found.append(planned(specs, rules, layout))
    return found


def planned(specs: list[KVCacheSpec], rules: EngineRules, layout: str) -> str:
    layers = [CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(specs)]
    try:
        return repr(plan(layers, LIMITS, 1 << 24, rules=rules, kv_cache_layout=layout))
    except KvpipeError as error:
        return str(error)


@pytest.mark.full
def test_every_combination_of_rules_and_layouts_stays_when_kinds_are_renamed(rename: Any) -> None:
    before = everything_planned()
    rename()
    assert [as_before(each) for each in everything_planned()] == before


@dataclass(frozen=True, kw_only=True)
class Locally(SlidingWindowSpec):
    """The arithmetic of a window, in a class and under a name that nobody has heard of."""

    kind = "locally"

    @property
    def type_key(self) -> tuple[object, ...]:
        return ("locally", self.sliding_window, self.dcp_sharded)


@pytest.mark.parametrize("layout", EngineRules.LAYOUTS)
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.name)
def test_a_window_of_another_name_is_planned_like_a_window(rules: Any, layout: str) -> None:
    full = FullAttentionSpec(head_size=96, **HEADS)
    shapes = []
    for window in (SlidingWindowSpec, Locally):
        local = window(head_size=64, sliding_window=512, **HEADS)
        for specs in (
            [*[local] * 11, full, full],
            [full, *[local] * 5, replace(full, head_size=64)],
        ):
            text = planned(specs, rules, layout)
            shapes.append(
                text.replace("Locally", "SlidingWindowSpec").replace("locally", "sliding")
            )
    assert shapes[:2] == shapes[2:]


def test_no_line_outside_specs_compares_a_kind() -> None:
    found = []
    for room in ROOMS:
        for path in sorted((Path(kvpipe.__file__).parent / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
                if (
                    isinstance(node, ast.Subscript)
                    and getattr(node.value, "attr", "") == "type_key"
                ):
                    sides = [node.value]
                found += [
                    f"{path.name}:{node.lineno}: {ast.unparse(node)}"
                    for side in sides
                    if isinstance(side, ast.Attribute)
                    and side.attr in ("kind", "type_key")
                    and ast.unparse(side.value).split(".")[-1] not in ("dtype", "p")
                ]
    assert not found, "ask the spec instead:\n" + "\n".join(found)
