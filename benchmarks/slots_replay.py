"""Real traces through the block manager under vLLM 0.33's plan, in equal slots, and in an ideal
arena of bytes, in one pool.

    python benchmarks/slots_replay.py azure AzureLLMInferenceTrace_conv.csv 3 150

reads three slices of 150 requests, evenly spread over the trace, and prints Markdown. All requests
of a slice wait from the start; the pool has room for ten typical requests under vLLM's plan and one
chunk in flight. Time is simulated, by the nominal step of the trace's options, and equal for all:
only what fits differs.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from layer_sets import LayerSet, layer_sets
from slots import smallest
from slots_arena import Arena

from kvpipe.blocks import BlockManager
from kvpipe.cache.plan import Plan
from kvpipe.request.confdir import shipped_option
from kvpipe.simulation.play import read_trace
from kvpipe.simulation.serving import Serving
from kvpipe.simulation.traces.base import TraceOptions, TraceRequest
from kvpipe.simulation.traffic import Traffic
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
    "gpt-oss-20b + EAGLE 4 (8x64)",
    "two models: gpt-oss-20b + Qwen3-0.6B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen3-Next-80B + Qwen3-0.6B",
    "Qwen3-Next-80B + DFlash 1 full (8x128)",
    "Bamba-9B + TinyLlama",
    "Zyphra/Zamba2-2.7B",
    "Llama-4-Scout + EAGLE 1",
    "gemma-2-27b + gemma-2-2b",
)
# Longest request that is served (longer ones are left out) and a typical one, in tokens.
LENGTHS = {"azure": (8192, 4096), "vidur": (4096, 4096), "mooncake": (32768, 16384)}
BATCH, MOST_RUNNING = 2048, 256


@dataclass
class Book:
    """At each step's end: requests that were begun until then. also: is told its seconds."""

    serving: Serving | None = None
    also: Callable[[float], None] = lambda step_s: None
    most: int = 0
    request_seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)

    def note(self, time_s: float, step_s: float, running: list[Traffic], waiting: int) -> None:
        assert self.serving is not None
        self.also(step_s)
        self.most = max(self.most, len(running))
        self.request_seconds += step_s * len(running)
        self.times.append(time_s)
        self.begun.append(self.serving.counts.finished + len(running))

    def at(self, time_s: float) -> int:
        return self.begun[max(0, bisect_right(self.times, time_s) - 1)]


@dataclass(frozen=True, kw_only=True)
class Run:
    seconds: float
    running: float
    preempted: int
    book: Book


def serve(  # type: ignore[no-untyped-def]
    manager,
    options: TraceOptions,
    requests: Sequence[TraceRequest],
    also: Callable[[float], None] = lambda step_s: None,
) -> Run:
    """also: is told of every step."""
    longest, book = manager.limits.max_model_len, Book(also=also)
    book.serving = serving = Serving(manager, options, MOST_RUNNING, book)  # type: ignore[arg-type]
    serving.serve(
        [
            Traffic(number, r, min(r.prompt_tokens + r.output_tokens, longest) - 1, r.prompt_tokens)
            for number, r in enumerate(requests)
        ]
    )
    assert serving.counts.finished == len(requests)
    return Run(
        seconds=serving.now,
        running=book.request_seconds / serving.now,
        preempted=serving.counts.preemptions,
        book=book,
    )


def in_blocks(plan: Plan, options: TraceOptions, requests: Sequence[TraceRequest]) -> Run:
    manager = BlockManager.from_plan(plan, max_num_requests=MOST_RUNNING + 1)
    run = serve(manager, options, requests)
    pool = manager.pool.stats()
    assert pool.empty_free + pool.cached_free == pool.usable, "slots are lost"
    return run


def ideal(layer_set: LayerSet, limits: RequestLimits, memory: int) -> Arena:
    specs = [smallest(layer.spec, layer_set.block_quantum, None) for layer in layer_set.layers]
    widths = {spec: times * spec.page_size_bytes for spec, times in Counter(specs).items()}
    return Arena(limits=limits, capacity=memory, widths=Counter(widths))


def planned(  # type: ignore[no-untyped-def]
    layer_set: LayerSet, rules, limits: RequestLimits, memory: int, **options
) -> Plan:
    return make_plan(
        GroupingRequest(
            ranks=(layer_set.layers,),
            limits=limits,
            memory=(memory,),
            rules=rules,
            block_quantum=layer_set.block_quantum,
            **options,
        )
    )


def pool_bytes(layer_set: LayerSet, limits: RequestLimits, typical: int) -> int:
    plan = planned(layer_set, VLLM_0_33, limits, 2**44, shares_prefixes=False)
    assert plan.capacity is not None
    width = plan.ranks[0].config.bytes_per_block
    steady = sum(g.spec.steady_blocks(typical, plan.limits) for g in plan.groups)
    in_flight = plan.capacity.peak_bytes - plan.capacity.steady_bytes
    return (10 * steady + 1) * width + in_flight


def slices(
    requests: Sequence[TraceRequest], longest: int, number: int, size: int
) -> list[Sequence[TraceRequest]]:
    fit = [r for r in requests if 0 < r.prompt_tokens < longest and r.output_tokens > 0]
    print(f"{len(fit):,} of {len(requests):,} requests are of at most {longest:,} tokens.\n")
    step = len(fit) // number
    return [fit[i * step :][:size] for i in range(number)]


def fewer(mine: Run, other: Run) -> float:
    """Share of the other's time in which fewer requests have been begun."""
    times = other.book.times
    behind = [mine.book.at(t) < other.book.at(t) for t in times]
    return sum(behind) / len(behind)


def most_behind(mine: Run, other: Run) -> tuple[int, int]:
    """By how many requests at most fewer have been begun, and of how many that are running."""
    steps = zip(other.book.times, other.book.begun, strict=True)
    gaps = [(begun - mine.book.at(at), number) for number, (at, begun) in enumerate(steps)]
    worst, _ = max(gaps)
    return max(0, worst), other.book.most


def reserved(plan: Plan, requests: Sequence[TraceRequest]) -> list[int]:
    """The same requests without preemption: each is let in, in order, once the blocks of its whole
    length are free, beside one chunk in flight; it runs a step a chunk of its prompt and a step a
    token. The step at which each is let in."""
    specs, limits = [group.spec for group in plan.groups], plan.limits
    assert plan.capacity is not None
    left = plan.capacity.usable_blocks
    left -= plan.capacity.peak_blocks - plan.capacity.steady_blocks
    ends: list[tuple[int, int]] = []  # step, blocks
    now, begun = 0, []
    for request in requests:
        length = min(limits.max_model_len, request.prompt_tokens + request.output_tokens)
        wanted = max(
            sum(spec.steady_blocks(n, limits) for spec in specs) for n in (length, length - 1)
        )
        while wanted > left:
            now, freed = heappop(ends)
            left += freed
        left -= wanted
        begun.append(now)
        steps = -(-request.prompt_tokens // BATCH) + request.output_tokens
        heappush(ends, (now + steps, wanted))
    return begun


def asked(trace: str, path: str, number: str, size: str):  # type: ignore[no-untyped-def]
    """The trace's options, the limits of a request, a usual length, and the slices to serve."""
    section = shipped_option("trace", trace) | {"path": path, "arrivals": "at_once"}
    source = read_trace(section)
    longest, typical = LENGTHS[trace]
    limits = RequestLimits(max_model_len=longest, max_num_batched_tokens=BATCH)
    parts = slices(source.requests(), longest, int(number), int(size))
    return source.options, limits, typical, parts


def main(trace: str, path: str, number: str, size: str) -> None:
    options, limits, typical, parts = asked(trace, path, number, size)
    print(
        "| layers | tables: vLLM, slots | running: vLLM | slots | arena | preempted: vLLM, slots "
        "| time: slots / vLLM | least, most | slots / arena | behind vLLM | at most | reserved |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        layer_set = layer_sets()[name]
        memory = pool_bytes(layer_set, limits, typical)
        plans = [
            planned(layer_set, rules, limits, memory, shares_prefixes=False)
            for rules in (VLLM_0_33, KVPIPE)
        ]
        runs = [
            (
                *(in_blocks(plan, options, part) for plan in plans),
                serve(ideal(layer_set, limits, memory), options, part),
            )
            for part in parts
        ]
        theirs, ours, best = zip(*runs, strict=True)
        to_vllm = [b.seconds / a.seconds for a, b in zip(theirs, ours, strict=True)]
        to_best = [b.seconds / a.seconds for a, b in zip(best, ours, strict=True)]
        behind = mean(fewer(b, a) for a, b in zip(theirs, ours, strict=True))
        worst, of = max(most_behind(b, a) for a, b in zip(theirs, ours, strict=True))
        pairs = [[reserved(plan, part) for plan in plans] for part in parts]
        later = sum(mine > its for one in pairs for its, mine in zip(*one, strict=True))
        running = " | ".join(f"{mean(r.running for r in one):.1f}" for one in (theirs, ours, best))
        lost = ", ".join(str(sum(r.preempted for r in one)) for one in (theirs, ours))
        print(
            f"| {name} | {len(plans[0].groups)}, {len(plans[1].groups)} | {running} | {lost} "
            f"| {mean(to_vllm):.3f} | {min(to_vllm):.3f}, {max(to_vllm):.3f} "
            f"| {mean(to_best):.3f} | {behind:.1%} | {worst} of {of} | {later} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
