"""Real traces through the block manager, under vLLM 0.33's plan and in equal slots, in one pool.

    python benchmarks/slots_replay.py azure_code_sample 120
    python benchmarks/slots_replay.py azure 120 path=AzureLLMInferenceTrace_conv.csv

prints Markdown. All requests wait from the start; the pool has room for ten requests of 4,096
tokens under vLLM's plan and one chunk in flight. Time is simulated, by the nominal step of the
trace's options, and equal for both plans: only what fits differs.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from layer_sets import LayerSet, layer_sets

from kvpipe.cache.plan import Plan
from kvpipe.request.confdir import shipped_option
from kvpipe.simulation.play import read_trace, replay
from kvpipe.simulation.result import ReplayResult
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.hybrid import make_plan
from kvpipe.stages.grouping.planning import KVPIPE, VLLM_0_33

MODELS = (
    "google/gemma-3-27b-it_text",
    "google/gemma-3-1b-pt",
    "google/gemma-3-4b-it_text",
    "gemma-3-27b + gemma-3-1b",
    "gemma-3-4b + gemma-3-1b",
    "two models: gemma-3-27b + Llama-3.1-8B",
    "gpt-oss-120b + EAGLE 1 (8x128)",
    "gpt-oss-20b + EAGLE 1 (8x128)",
    "two models: gpt-oss-20b + Qwen3-0.6B",
    "Qwen3-Next-80B + Qwen3-0.6B",
    "Bamba-9B + TinyLlama",
    "Mistral-7B-v0.1 + Llama-3.2-1B",
    "gemma-2-27b + gemma-2-2b",
)
LENGTH, TYPICAL, BATCH = 8192, 4096, 2048


def planned(layer_set: LayerSet, rules, memory: int) -> Plan:  # type: ignore[no-untyped-def]
    return make_plan(
        GroupingRequest(
            ranks=(layer_set.layers,),
            limits=RequestLimits(max_model_len=LENGTH, max_num_batched_tokens=BATCH),
            memory=(memory,),
            rules=rules,
            block_quantum=layer_set.block_quantum,
        )
    )


def pool_bytes(layer_set: LayerSet) -> int:
    plan = planned(layer_set, VLLM_0_33, 2**44)
    cap, limits = plan.capacity, plan.limits
    assert cap is not None
    width = plan.ranks[0].config.bytes_per_block
    steady = sum(g.spec.steady_blocks(TYPICAL, limits) for g in plan.groups)
    return (10 * steady + 1) * width + cap.peak_bytes - cap.steady_bytes


def told(result: ReplayResult) -> str:
    pool = result.pool
    assert pool.empty_free + pool.cached_free == pool.usable, "blocks are lost"
    return f"{result.mean_running:.2f} | {result.max_running} | {result.simulated_s:.1f}"


def main(trace: str, most: str, *more: str) -> None:
    section = shipped_option("trace", trace) | {
        "max_requests": int(most),
        "arrivals": "at_once",
        **dict(word.split("=", 1) for word in more),
    }
    source = read_trace(section)
    requests = [replace(r) for r in source.requests()]
    print(
        "| layers | tables | running: mean | most | seconds "
        "| tables | mean | most | seconds | time |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        layer_set = layer_sets()[name]
        memory = pool_bytes(layer_set)
        shown, seconds = [], []
        for rules in (VLLM_0_33, KVPIPE):
            plan = planned(layer_set, rules, memory)
            result = replay(requests, plan, source.options, max_num_seqs=256)
            shown += [str(len(plan.groups)), told(result)]
            seconds.append(result.simulated_s)
        ratio = seconds[1] / seconds[0]
        print(f"| {name} | {' | '.join(shown)} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
