"""Other groups of the same layers, as notes: each was planned, and holds when it is applied."""

from __future__ import annotations

import pytest

from kvpipe.answers.regroupings import regroupings
from kvpipe.front.prepared import prepared_request
from kvpipe.notes import Note
from kvpipe.pipeline import Result, execute

ASKED = (
    "model=gemma3_27b",
    "device=h100_80gb",
    "backend=meta",
    "cache.kv_cache_memory_bytes=20GiB",
    "scheduler.max_model_len=32768",
)


def run(*words: str) -> Result:
    return execute(prepared_request([*ASKED, *words]).prepared)


def found(text: str, result: Result) -> list[Note]:
    return [note for note in regroupings(result) if text in note.text]


@pytest.mark.parametrize("engine", ["kvpipe", "vllm_0_33"])
def test_fewer_tokens_in_flight_are_named_with_the_requests_that_then_run(engine: str) -> None:
    before = run(f"engine={engine}", "scheduler.max_num_batched_tokens=8192")
    (note,) = found("tokens in flight hold", before)
    assert note.changes == ({"scheduler.max_num_batched_tokens": 2048},)
    after = run(f"engine={engine}", "scheduler.max_num_batched_tokens=2048")
    assert before.plan.capacity is not None and after.plan.capacity is not None
    assert f"{after.plan.capacity.requests_running:,} requests of 32,768" in note.text
    assert after.plan.capacity.requests_running > before.plan.capacity.requests_running
    assert found("tokens in flight hold", after) == []


def test_one_kind_of_layer_has_nothing_to_regroup() -> None:
    asked = ["model=llama", "device=h100_80gb", "backend=meta", "scheduler.max_model_len=8192"]
    result = execute(prepared_request([*asked, "cache.kv_cache_memory_bytes=20GiB"]).prepared)
    assert list(regroupings(result)) == []
