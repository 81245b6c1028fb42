"""Every recorded layer set under vLLM's grouping and in equal slots: tables, bytes over the fewest,
planning time. `python benchmarks/slots.py [objective]` prints Markdown; no engine and no GPU.

Each length is averaged over 33 lengths within 10% of it. "bound": blocks of the smallest size
without any padding, over the bytes of the tokens that must be stored.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from layer_sets import LayerSet, layer_sets

from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.hybrid import make_plan
from kvpipe.stages.grouping.planning import KVPIPE, VLLM_0_17, VLLM_0_33
from kvpipe.stages.grouping.slots.options import SlotOptions

LENGTHS = (1024, 8192, 32768, 131072)
MEMORY = 2**44


def planned(layer_set: LayerSet, rules, options: SlotOptions) -> tuple[Plan | None, float]:  # type: ignore[no-untyped-def]
    request = GroupingRequest(
        ranks=(layer_set.layers,),
        limits=layer_set.limits(),
        memory=(MEMORY,),
        rules=rules,
        slots=options,
        block_quantum=layer_set.block_quantum,
    )
    best = 1e9
    for _ in range(3):
        start = process_time()
        try:
            made = make_plan(request)
        except KvpipeError:
            return None, 0.0
        best = min(best, process_time() - start)
    return made, best * 1e3


def near(length: int, longest: int) -> list[int]:
    return [min(longest, round(length * (0.9 + 0.2 * i / 32))) for i in range(33)]


def smallest(spec: KVCacheSpec, quantum: int | None, tokens: int | None) -> KVCacheSpec:
    if spec.is_state:
        return replace(spec, page_size_padded=None) if quantum else spec
    return spec.with_block_size(tokens or quantum or spec.block_size)


def stored(layer_set: LayerSet, length: int, tokens: int | None = None) -> int:
    """Bytes of a request in blocks of `tokens` without padding (None: the smallest)."""
    limits, total = layer_set.limits(), 0
    counts: dict[KVCacheSpec, int] = {}
    for layer in layer_set.layers:
        counts[layer.spec] = counts.get(layer.spec, 0) + 1
    for spec, count in counts.items():
        small = smallest(spec, layer_set.block_quantum, tokens)
        total += small.steady_blocks(length, limits) * small.page_size_bytes * count
    return total


def held(plan: Plan, length: int) -> int:
    blocks = sum(g.spec.steady_blocks(length, plan.limits) for g in plan.groups)
    return blocks * plan.ranks[0].config.bytes_per_block


def over(plan: Plan | None, layer_set: LayerSet, length: int) -> float | None:
    if plan is None:
        return None
    lengths = near(length, layer_set.max_model_len)
    return sum(held(plan, n) for n in lengths) / sum(stored(layer_set, n, 1) for n in lengths)


def main(objective: str = "never_worse") -> None:
    options = SlotOptions(objective=objective)  # type: ignore[arg-type]
    rows: list[tuple[str, int, list[float | None]]] = []
    times = []
    print("| layers | length | vLLM 0.17 | vLLM 0.33 | slots | bound |\n|---|---|---|---|---|---|")
    for name, layer_set in layer_sets().items():
        plans = [planned(layer_set, rules, options) for rules in (VLLM_0_17, VLLM_0_33, KVPIPE)]
        ours, took = plans[2]
        assert ours is not None
        times.append((took, name))
        tables = " | ".join(str(len(p.groups)) if p else "-" for p, _ in plans)
        rule = f"{ours.slots.rule}, grain {ours.slots.prefix_grain}" if ours.slots else "one group"
        blocks = " ".join(
            f"{len(g.layer_names)}{g.spec.kind[0]}@{min(g.spec.block_size, 99999)}"
            for g in ours.groups[:12]
        )
        print(f"| **{name}** | tables | {tables} | {took:.1f} ms, {rule}: {blocks} |")
        for length in (n for n in LENGTHS if n <= 1.1 * layer_set.max_model_len):
            ratios = [over(p, layer_set, length) for p, _ in plans]
            lengths = near(length, layer_set.max_model_len)
            bound = sum(stored(layer_set, n) for n in lengths)
            bound /= sum(stored(layer_set, n, 1) for n in lengths)
            rows.append((name, length, [*ratios, bound]))
            shown = " | ".join("-" if r is None else f"{r:.3f}" for r in [*ratios, bound])
            print(f"| | {length:,} | {shown} |")
    report(rows, times)


def report(rows: list[tuple[str, int, list[float | None]]], times: list[tuple[float, str]]) -> None:
    print()
    for least in (0, 8192):
        kept = [r for r in rows if r[1] >= least]
        for at, who in enumerate(("vLLM 0.17", "vLLM 0.33", "slots", "bound")):
            found = sorted(r for _, _, ratios in kept if (r := ratios[at]) is not None)
            print(
                f"lengths of {least:,} and more, {who}: mean {mean(found):.4f}, largest "
                f"{found[-1]:.3f}, {sum(r <= 1.02 for r in found)} of {len(found)} within 1.02"
            )
    print("planning, slowest: " + ", ".join(f"{n} {t:.1f} ms" for t, n in sorted(times)[-5:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
