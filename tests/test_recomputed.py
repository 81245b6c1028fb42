"""What preemptions cost, beside the same trace in a pool that nobody is sent out of."""

from __future__ import annotations

import json

import pytest

from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import plan_with
from kvpipe.simulation.play import read_trace, replay
from kvpipe.simulation.recomputed import recomputed_tokens
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.traces.base import TraceRequest

WORDS = (
    "model=llama",
    "device=h100_80gb",
    "backend=meta",
    "engine=vllm",
    "scheduler.max_model_len=4096",
)


def served(
    seed: int, memory: int, *, shared: int = 0, replicas: int = 1
) -> tuple[list[TraceRequest], ReplayResult]:
    words = ["trace=synthetic", f"trace.seed={seed}", "trace.max_requests=40"]
    words += ["trace.prompt_tokens=500", "trace.output_tokens=300", "trace.requests_per_second=50"]
    words += [f"trace.shared_prefix_tokens={shared}", f"trace.replicas={replicas}"]
    prepared = prepared_request([*WORDS, *words]).prepared
    trace = read_trace(prepared.config.trace)
    plan = plan_with(prepared, (memory,), compared=())
    requests = trace.requests()
    return requests, replay(requests, plan, trace.options, prefix_caching=bool(shared))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("replicas", [1, 2])
def test_it_is_what_a_large_pool_would_not_have_computed(seed: int, replicas: int) -> None:
    requests, small = served(seed, 600 * 2**20, replicas=replicas)
    _, large = served(seed, 40 * 2**30, replicas=replicas)
    assert large.counts.preemptions == 0 < small.counts.preemptions
    again = recomputed_tokens(requests, small)
    assert again == small.counts.stored_tokens - large.counts.stored_tokens > 0
    assert recomputed_tokens(requests, large) == 0


def test_what_is_found_in_the_cache_again_costs_nothing() -> None:
    requests, small = served(1, 600 * 2**20, shared=256)
    again = recomputed_tokens(requests, small)
    _, large = served(1, 40 * 2**30, shared=256)
    assert recomputed_tokens(requests, large) == 0 and large.counts.hit_tokens > 0
    assert again is not None and small.counts.preemptions > 0
    bare = recomputed_tokens(*served(1, 600 * 2**20))
    assert bare is not None and again < bare


def test_it_is_told_where_there_were_preemptions(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["replay", *WORDS, "trace=synthetic", "trace.max_requests=30", "hydra.run.dir=out"]
    words += ["trace.requests_per_second=50", "cache.kv_cache_memory_bytes=600MiB"]
    run(words)
    out = " ".join(capsys.readouterr().out.split())
    document = json.loads((tmp_path / "out/replay.json").read_text())
    assert document["recomputed_tokens"] > 0
    assert f"had {document['recomputed_tokens']:,} tokens computed again (" in out
