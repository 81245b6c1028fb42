"""Runs of block indices, held against sets; and what a spec is told that answers something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from block_models import HEAD, Setting, config_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpipe.blocks import BlockManager
from kvpipe.errors import ConfigError
from kvpipe.specs.base import CacheLayer
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.runs import below, has, indices, joined, num_indices
from kvpipe.stages.grouping.planning import plan

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=6)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PAIRS, st.integers(0, 45))
def test_runs_are_the_set_of_their_indices_in_one_spelling(pairs: Any, stop: int) -> None:
    ranges = [range(start, start + length) for start, length in sorted(pairs)]
    runs = joined(*ranges)
    members = {i for one in ranges for i in one}
    assert list(indices(runs)) == sorted(members) and num_indices(runs) == len(members)
    assert {i for i in range(50) if has(runs, i)} == members
    assert all(a.stop < b.start for a, b in zip(runs, runs[1:], strict=False)) and all(runs)
    assert set(indices(below(runs, stop))) == {i for i in members if i < stop}


@dataclass(frozen=True, kw_only=True)
class Wrong(FullAttentionSpec):
    kind = "wrong"
    answer: Any = None

    def resident(self, computed: int, new: int, limits: Any) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (range(3), "range range\\(0, 3\\)"),
        ([range(3)], "list \\[range\\(0, 3\\)\\]"),
        ((range(0, 4, 2),), "range\\(0, 4, 2\\) in \\(range\\(0, 4, 2\\),\\)"),
        ((0, 1), "0 in \\(0, 1\\)"),
        ((range(2), range(2, 3)), "\\(range\\(0, 2\\), range\\(2, 3\\)\\)"),
        ((range(4, 5), range(2)), "\\(range\\(4, 5\\), range\\(0, 2\\)\\)"),
        ((range(0),), "\\(range\\(0, 0\\),\\)"),
        (None, "NoneType None"),
    ],
)
def test_a_spec_that_answers_no_runs_is_told_so_by_name(answer: Any, got: str) -> None:
    spec = Wrong(block_size=4, answer=answer, **HEAD)
    manager = BlockManager(config_of([spec], 9), Setting("", [spec]).limits())
    manager.add_request("r")
    expected = f"spec 'wrong': expected resident\\(0, 5, ...\\) .*, got {got}; mend test_runs.Wrong"
    with pytest.raises(ConfigError, match=expected):
        manager.allocate("r", 5)
    assert manager.pool.num_free == 8


WRONG_ANSWERS: list[tuple[str, Any, str]] = [
    ("page_arrays", [], "page_arrays\\(\\) to answer a tuple of PageArray, got list \\[\\]"),
    ("max_blocks", 2.5, "max_blocks\\(...\\) to answer a number of blocks, got float 2.5"),
    ("peak_blocks", None, "peak_blocks\\(...\\) to answer a number of blocks, got NoneType"),
    ("steady_blocks", -1, "steady_blocks\\(1, ...\\) to answer a number of blocks, got int -1"),
    ("steady_cost", 3, "steady_cost\\(...\\) to answer \\(blocks, blocks a token\\), got int 3"),
    ("hit_length", True, "hit_length\\(\\[True\\]\\) to answer tokens, got bool True"),
    ("written", (0, 1), "written\\(0, 1, ...\\) to answer a range of positions, got tuple"),
    ("resident", range(1), "resident\\(0, 1, ...\\) to answer ascending ranges"),
]


@pytest.mark.parametrize(("question", "answer", "said"), WRONG_ANSWERS)
def test_a_plan_tells_whose_spec_answers_something_else(
    question: str, answer: Any, said: str
) -> None:
    body = {"__module__": "third.party", question: lambda self, *asked: answer}
    wrong = type("Theirs", (FullAttentionSpec,), body)
    spec = wrong(block_size=4, **HEAD)
    limits = Setting("", []).limits()
    with pytest.raises(ConfigError, match=f"spec 'full': expected {said}.*mend third.party.Theirs"):
        plan([CacheLayer(name="layers.0", spec=spec)], limits, 1 << 20)
