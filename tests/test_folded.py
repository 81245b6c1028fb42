"""Folding loses nothing and makes the document of a large plan small."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvpipe
from kvpipe.report.document import plan_document
from kvpipe.report.folded import REPEAT, folded, unfolded
from kvpipe.report.of_run import report_input

LEAVES = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a.1.b", "a.2.b", "07"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.dictionaries(st.sampled_from(["layer", "rank", "of"]), inner, max_size=3)
    ),
    max_leaves=40,
)

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@UNHURRIED
@given(VALUES)
def test_what_was_folded_unfolds_to_itself(value):
    assert unfolded(json.loads(json.dumps(folded(value)))) == value


@UNHURRIED
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=12))
def test_layers_in_any_order_unfold_to_themselves(numbers):
    layers = [{"layer": f"model.{i}.attn", "views": [{"at": k}]} for i, k in numbers]
    assert unfolded(folded(layers)) == layers


def test_layers_and_ranks_that_differ_in_their_number_are_one_item():
    ranks = [
        {
            "rank": rank,
            "layers": [{"layer": f"model.layers.{i}.attn", "at": 64 * i} for i in range(9)],
        }
        for rank in range(4)
    ]
    small = folded({"ranks": ranks})
    layers = {
        REPEAT: 9,
        "first": {"layer": "model.layers.0.attn", "at": 0},
        "step": {"layer": [1], "at": 64},
    }
    first = {"rank": 0, "layers": [layers]}
    assert small == {"ranks": [{REPEAT: 4, "first": first, "step": {"rank": 1}}]}


def test_true_is_no_number_and_what_grows_unevenly_is_no_run():
    assert folded([{"a": True}, {"a": False}]) == [{"a": True}, {"a": False}]
    assert folded([{"n": 1}, {"n": 2}, {"n": 4}, {"n": 8}])[-1] == {"n": 8}
    counted = [{"n": f"x{i:02}"} for i in range(7, 13)]
    assert unfolded(folded(counted)) == counted


@pytest.mark.parametrize(
    ("request_", "at_most"),
    [
        (["model=deepseek_v3", "device=h200", "parallel.tensor_parallel_size=16"], 60_000),
        (["model=gemma3_27b", "device=h200", "parallel=pp2"], 120_000),
    ],
)
def test_the_document_of_a_large_plan_is_small_and_whole(request_, at_most, tmp_path):
    result = kvpipe.run([*request_, "backend=meta"])
    result.save(tmp_path)
    text = (tmp_path / "plan.json").read_text()
    whole = json.loads(json.dumps(plan_document(report_input(result))))
    assert unfolded(json.loads(text)) == whole | {"exit_code": 0}
    assert len(text) <= at_most
