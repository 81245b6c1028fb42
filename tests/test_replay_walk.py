"""A replay that passes over what does not change tells what a walk of every request tells."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from block_models import chunked, full, mamba, sliding
from replay_walk import Walk

from kvpipe.blocks import BlockManager
from kvpipe.cache.plan import Plan
from kvpipe.physics.bounds import StepBound
from kvpipe.physics.reads import CacheReads, cache_reads
from kvpipe.request.confdir import shipped_option
from kvpipe.simulation import read_trace
from kvpipe.simulation.ledger import Ledger
from kvpipe.simulation.serving import Serving
from kvpipe.simulation.traces.base import TraceOptions, TraceRequest
from kvpipe.simulation.traffic import Traffic
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.stages.grouping.planning import plan

TRACES: dict[str, dict[str, Any]] = {
    "azure_code_sample": {"arrival_rate_scale": 1.0},
    "mooncake_sample": {},
    "synthetic": {"shared_prefix_tokens": 640, "requests_per_second": 100.0},
    "synthetic at once": {"prompt_tokens": 300, "output_tokens": 150, "arrivals": "at_once"},
}
MODELS: dict[str, list[KVCacheSpec]] = {
    "full": [full(16)],
    "full and window": [full(32), sliding(16, 600)],
    "chunk": [full(16), chunked(16, 1024)],
    "latent": [MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=8, dtype="float16")],
    "state": [full(16), mamba(16, "none")],
    "state, kept by prefix": [full(16), mamba(64, "align")],
}


def requests_of(trace: str, most: int) -> tuple[list[TraceRequest], TraceOptions]:
    section = shipped_option("trace", trace.split()[0]) | {"max_requests": most}
    read = read_trace(section | TRACES[trace])
    shortened = [
        TraceRequest(
            arrival_s=0.0 if read.options.arrivals == "at_once" else one.arrival_s / 20,
            prompt_tokens=one.prompt_tokens,
            output_tokens=min(one.output_tokens, 200),
            prefix_ids=one.prefix_ids,
            prefix_block=one.prefix_block,
        )
        for one in read.requests()
    ]
    return shortened, read.options


def plan_of(
    specs: list[KVCacheSpec], requests: list[TraceRequest], batched: int, room: float = 1.25
) -> Plan:
    """A pool that holds any one of the requests, `room` times the longest."""
    layers = [CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(specs)]
    mode = "align" if any("align" in str(spec) for spec in specs) else "none"
    longest = max(one.prompt_tokens + one.output_tokens for one in requests)
    limits = RequestLimits(
        max_model_len=longest, max_num_batched_tokens=batched, mamba_cache_mode=mode
    )
    blocks = sum(spec.peak_blocks(limits) for spec in specs) * room // 1 + 20
    page = max(spec.page_size_bytes for spec in specs)
    return plan(layers, limits, int(blocks) * page * len(specs), fit=True)


def replayed(
    requests: list[TraceRequest], plan: Plan, best: StepBound, seqs: int
) -> dict[str, Any]:
    options = read_trace(shipped_option("trace", "synthetic")).options
    manager = BlockManager.from_plan(plan, max_num_requests=seqs + 1, prefix_caching=True)
    serving = Serving(manager, options, seqs, Ledger(manager, plan.capacity), step_time=best)
    over: list[tuple[int, float]] = []
    noted = serving.latencies.finished

    def finished(item: Traffic, now: float) -> None:
        over.append((item.number, now))
        noted(item, now)

    serving.latencies.finished = finished  # type: ignore[method-assign]
    serving.serve(
        [
            Traffic(number, one, one.prompt_tokens + one.output_tokens - 1, one.prompt_tokens)
            for number, one in enumerate(requests)
        ]
    )
    return {
        "now": serving.now,
        "steps": serving.ledger.steps,
        "preemptions": serving.counts.preemptions,
        "hit_tokens": serving.counts.hit_tokens,
        "wait": sorted(serving.latencies.wait),
        "first_token": sorted(serving.latencies.first_token),
        "finished": over,
        "by_group": [
            [one.asked_tokens, one.hit_tokens, one.cut_tokens, one.cut_requests]
            for one in serving.hits.by_group
        ],
        "pool": manager.pool.stats(),
    }


def compared(trace: str, model: str, most: int, batched: int) -> dict[str, Any]:
    requests, _ = requests_of(trace, most)
    return held_against_the_walk(requests, model, batched)


def held_against_the_walk(
    requests: list[TraceRequest], model: str, batched: int, seqs: int = 16, room: float = 1.25
) -> dict[str, Any]:
    planned = plan_of(MODELS[model], requests, batched, room)
    layers = [CacheLayer(name="layers.0", spec=spec) for spec in MODELS[model]]
    reads = CacheReads(slope=99_991.0, fixed=7.0, windows=((2_003.0, 500), (88_001.0, 1500)))
    if model == "chunk":
        reads = cache_reads(layers, planned.limits)
    best = StepBound(weight_bytes=3e9, weights=2e9, reads=reads, bandwidth=1e12, peak=3e14)
    manager = BlockManager.from_plan(planned, max_num_requests=seqs + 1, prefix_caching=True)
    walked = Walk(manager, best, seqs).serve(requests).told()
    assert replayed(requests, planned, best, seqs) == walked
    assert len(walked["finished"]) == len(requests)
    return walked


@pytest.mark.parametrize("model", MODELS)
def test_a_replay_tells_what_a_walk_of_every_request_tells(model: str) -> None:
    told = compared("synthetic", model, 9, 512)
    assert told["preemptions"] > 0


def test_it_does_where_a_step_has_hardly_a_token_for_each() -> None:
    compared("synthetic at once", "full and window", 8, 5)


@pytest.mark.full
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("model", MODELS)
def test_four_traces_are_told_alike_under_every_model(trace: str, model: str) -> None:
    told = compared(trace, model, 60, 2048)
    assert told["steps"] > 100


@pytest.mark.full
@pytest.mark.parametrize("seed", range(16))
def test_pieces_of_real_traces_are_told_alike_under_settings_drawn_at_random(seed: int) -> None:
    draw = random.Random(seed)
    requests, _ = requests_of(("mooncake_sample", "azure_code_sample")[seed % 2], 400)
    first, faster = draw.randrange(len(requests) - 40), draw.choice([0.2, 1.0, 10.0])
    piece = requests[first : first + draw.randrange(10, 40)]
    start = piece[0].arrival_s
    moved = [replace(one, arrival_s=(one.arrival_s - start) / faster) for one in piece]
    model, batched = draw.choice([*MODELS]), draw.choice([64, 512, 2048, 8192])
    told = held_against_the_walk(
        moved, model, batched, seqs=draw.choice([1, 3, 16, 40]), room=draw.choice([1.0, 1.5, 4.0])
    )
    assert told["steps"] > 0
