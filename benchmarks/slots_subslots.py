"""State hybrids over time: equal slots, sub-slots and an ideal arena of bytes in one pool.

    python benchmarks/slots_subslots.py azure AzureLLMInferenceTrace_conv.csv 2 150

As `slots_replay.py`: slices of the trace, all requests of a slice wait from the start, a pool for
ten typical requests under vLLM's plan. Sub-slots are taken where the replay ends at least 1% sooner
(`grouping.subslots=auto`); the last column says whether they would be.
"""

from __future__ import annotations

import sys
from statistics import mean

from slots_replay import (  # which finds the tests' layer sets
    MOST_RUNNING,
    Run,
    asked,
    ideal,
    layer_sets,
    planned,
    pool_bytes,
    serve,
)

from kvpipe.blocks import BlockManager
from kvpipe.cache.plan import Plan
from kvpipe.simulation.traces.base import TraceOptions
from kvpipe.stages.grouping.planning import KVPIPE
from kvpipe.stages.grouping.slots.options import SlotOptions

MODELS = (
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "ai21labs/Jamba-v0.1",
    "ai21labs/AI21-Jamba-1.5-Large",
    "nvidia/Nemotron-H-8B-Base-8K",
    "ibm-ai-platform/Bamba-9B-v2",
    "ibm-granite/granite-4.0-h-tiny",
    "Zyphra/Zamba2-2.7B",
    "tiiuae/Falcon-H1-1.5B-Base",
    "preset lfm2",
    "Qwen3-Next-80B + MTP",
    "Bamba-9B + TinyLlama",
)


class Holes:
    """Beside the run: at each step the share of used slots that are holes of sub-slots."""

    def __init__(self, manager: BlockManager) -> None:
        self.manager, self.seconds, self.share, self.most = manager, 0.0, 0.0, 0.0

    def note(self, step_s: float) -> None:
        pool = self.manager.pool
        used = pool.num_blocks - 1 - pool.num_free
        groups = zip(self.manager.config.groups, self.manager.num_holes, strict=True)
        holes = sum(holes / group.blocks_per_slot for group, holes in groups)
        share = holes / used if used else 0.0
        self.seconds += step_s
        self.share += step_s * share
        self.most = max(self.most, share)


def in_blocks(plan: Plan, options: TraceOptions, requests) -> tuple[Run, Holes]:  # type: ignore[no-untyped-def]
    manager = BlockManager.from_plan(plan, max_num_requests=MOST_RUNNING + 1)
    holes = Holes(manager)
    run = serve(manager, options, requests, holes.note)
    assert manager.pool.num_free == manager.pool.num_blocks - 1, "slots are lost"
    return run, holes


def main(trace: str, path: str, number: str, size: str) -> None:
    options, limits, typical, parts = asked(trace, path, number, size)
    print(
        "| layers | tables: equal, sub | a slot holds | preempted: equal, sub "
        "| time: equal / arena | sub / arena | sub / equal | least, most "
        "| holes: mean, most | taken |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        layer_set = layer_sets()[name]
        memory = pool_bytes(layer_set, limits, typical)
        equal, sub = (
            planned(layer_set, KVPIPE, limits, memory, shares_prefixes=False, slots=slots)
            for slots in (SlotOptions(), SlotOptions(subslots=True))
        )
        per_slot = max(group.blocks_per_slot for group in sub.groups)
        theirs = [in_blocks(equal, options, part)[0] for part in parts]
        ours = [in_blocks(sub, options, part) for part in parts]
        best = [serve(ideal(layer_set, limits, memory), options, part) for part in parts]
        to_equal = [b.seconds / a.seconds for a, (b, _) in zip(theirs, ours, strict=True)]
        over = [a.seconds / b.seconds for a, b in zip(theirs, best, strict=True)]
        sub_over = [a.seconds / b.seconds for (a, _), b in zip(ours, best, strict=True)]
        share = mean(holes.share / holes.seconds for _, holes in ours)
        most = max(holes.most for _, holes in ours)
        taken = sum(b.seconds for b, _ in ours) <= 0.99 * sum(a.seconds for a in theirs)
        print(
            f"| {name} | {len(equal.groups)}, {len(sub.groups)} | {per_slot} blocks "
            f"| {sum(r.preempted for r in theirs)}, {sum(r.preempted for r, _ in ours)} "
            f"| {mean(over):.3f} | {mean(sub_over):.3f} | {mean(to_equal):.3f} "
            f"| {min(to_equal):.3f}, {max(to_equal):.3f} | {share:.1%}, {most:.1%} "
            f"| {'yes' if taken else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
