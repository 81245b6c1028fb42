"""Prefix hits on Mooncake's conversation trace: what a coarse grain costs, under several plans.

    python benchmarks/slots_prefixes.py [file of the trace] [requests]

First without a limit of memory: shares of all prompt tokens that lie in a prefix of an earlier
request, cut to whole multiples of a grain; the difference to the grain of one token is all that
reusing part of a block by a copy could bring. The trace names prefixes by blocks of 512 tokens, so
that a grain that divides 512 loses nothing in it; where they end anywhere, half a grain a hit is
lost. Then through the block manager in one pool.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from layer_sets import layer_sets
from slots_replay import planned

from kvpipe.request.confdir import shipped_option
from kvpipe.simulation.play import read_trace, replay
from kvpipe.simulation.traces.base import TraceRequest
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.planning import KVPIPE, VLLM_0_33
from kvpipe.stages.grouping.slots.options import SlotOptions

MODELS = (
    "google/gemma-3-27b-it_text",
    "google/gemma-3-1b-pt",
    "gemma-3-27b + gemma-3-1b",
    "gemma-3-4b + gemma-3-1b",
    "two models: gemma-3-27b + Llama-3.1-8B",
    "gpt-oss-120b + EAGLE 1 (8x128)",
    "two models: gpt-oss-20b + Qwen3-0.6B",
    "gemma-2-27b + gemma-2-2b",
)
GRAINS = (1, 16, 32, 48, 64, 80, 96, 112, 128, 160, 256, 400, 512)
LENGTH, TYPICAL, ROOM = 32768, 16384, 24
LIMITS = RequestLimits(max_model_len=LENGTH, max_num_batched_tokens=2048)


def shared_tokens(requests: Sequence[TraceRequest]) -> list[int]:
    """Of each prompt, the tokens in front that an earlier prompt has, too; its last is computed."""
    seen: set[tuple[int, int]] = set()
    found = []
    for request in requests:
        name, shared, known = 0, 0, True
        for prefix_id in request.prefix_ids:
            name = hash((name, prefix_id))
            known = known and (name, prefix_id) in seen
            shared += known * request.prefix_block
            seen.add((name, prefix_id))
        found.append(min(shared, request.prompt_tokens - 1))
    return found


def without_limit(requests: Sequence[TraceRequest]) -> None:
    shared, total = shared_tokens(requests), sum(r.prompt_tokens for r in requests)
    print("| grain | share of prompt tokens hit | lost | lost, where prefixes end anywhere |")
    print("|---|---|---|---|")
    exact, hits = sum(shared) / total, sum(n > 0 for n in shared)
    for grain in GRAINS:
        hit = sum(n // grain * grain for n in shared) / total
        anywhere = hits * (grain - 1) / 2 / total
        print(f"| {grain} | {hit:.4f} | {exact - hit:.4f} | {anywhere:.4f} |")


def in_a_pool(requests: Sequence[TraceRequest], options) -> None:  # type: ignore[no-untyped-def]
    print("\n| layers | plan | tables | grain | hit | seconds |\n|---|---|---|---|---|---|")
    for name in MODELS:
        layer_set = layer_sets()[name]
        base = planned(layer_set, VLLM_0_33, LIMITS, 2**44)
        steady = sum(g.spec.steady_blocks(TYPICAL, base.limits) for g in base.groups)
        memory = ROOM * steady * base.ranks[0].config.bytes_per_block
        shown = set[tuple[object, ...]]()
        for rules, grain in ((VLLM_0_33, 128), (KVPIPE, 16), (KVPIPE, 128), (KVPIPE, 512)):
            slots = SlotOptions(max_prefix_grain=grain)
            plan = planned(layer_set, rules, LIMITS, memory, slots=slots)
            key = plan.engine, *((g.spec, len(g.layer_names)) for g in plan.groups)
            if key in shown:
                continue
            shown.add(key)
            result = replay(requests, plan, options, max_num_seqs=256, prefix_caching=True)
            hit = result.counts.hit_tokens / max(1, result.counts.prompt_tokens)
            its = plan.slots.prefix_grain if plan.slots else "-"
            who = f"slots, grain at most {grain}" if plan.slots else rules.name
            print(
                f"| {name} | {who} | {len(plan.groups)} | {its} | {hit:.4f} "
                f"| {result.simulated_s:.1f} |",
                flush=True,
            )


def main(path: str = "sample", most: str = "120") -> None:
    section = shipped_option("trace", "mooncake") | {"path": path, "arrivals": "at_once"}
    source = read_trace(section)
    requests = source.requests()
    print(f"{len(requests):,} requests, memory without limit:\n")
    without_limit(requests)
    fit = [r for r in requests if r.prompt_tokens < LENGTH][: int(most)]
    in_a_pool(fit, source.options)


if __name__ == "__main__":
    main(*sys.argv[1:])
