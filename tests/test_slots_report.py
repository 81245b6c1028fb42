"""What the report says of equal slots: the promise, the bound and the running server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvpipe.front.api import RunResult, run


@pytest.fixture(scope="module")
def gemma() -> Iterator[RunResult]:
    yield run(
        [
            "model=gemma3_27b",
            "device=h100_80gb",
            "cache.kv_cache_memory_bytes=20GiB",
            "scheduler.max_model_len=32768",
            "scheduler.max_num_batched_tokens=8192",
            "report=full",
        ]
    )


@pytest.mark.parametrize(("users", "is_warning"), [(24, True), (20, False)])
def test_a_line_under_which_vllm_runs_fewer_says_so(users: int, is_warning: bool) -> None:
    """Planned by vLLM's own rules, in the same bytes: 23 requests where equal slots hold 24."""
    words = ["model=gemma3_27b", "device=h200", "scheduler.max_model_len=32768", "backend=meta"]
    document = run([*words, f"want.requests={users}"]).to_json()
    assert document["serve"] and document["capacity"]["requests_running"] == 24
    notes = [note for note in document["notes"] if "groups the layers otherwise" in note["text"]]
    [note] = notes
    assert "runs 23 such requests, not 24" in note["text"] and note["is_warning"] == is_warning
    flags = [
        "engine=vllm_0_33",
        f"cache.kv_cache_memory_bytes={document['plan']['ranks'][0]['available_bytes']}",
        "scheduler.max_num_batched_tokens=2048",
        "scheduler.max_num_seqs=256",
    ]
    theirs = run([*words, *flags]).to_json()
    assert theirs["capacity"]["requests_running"] == 23
    assert document["notes"][0] == note  # the first screen tells the first warning


def test_what_a_request_holds_at_its_peak_counts_its_scratch() -> None:
    """Else kvpipe's own line would be told beside it, as an engine's that errs."""
    words = ["model=gemma3_27b", "device=h200", "scheduler.max_model_len=32768", "backend=meta"]
    made = run([*words, "grouping.scratch=on", "cache.enable_prefix_caching=false"])
    assert made.plan.capacity is not None and made.plan.capacity.scratch_blocks
    own = made.plan.printed[0]
    assert own.engine == "kvpipe" and own.max_concurrency is not None
    assert f"{int(100 * own.max_concurrency) / 100:.2f}" in made.text()
    assert "kvpipe prints" not in made.text()
