"""Reports of small made-up runs, for the tests of the report: specs in, ReportInput out.

The planning here is deliberately the simplest that gives every cause of waste: equal specs form a
bucket, a bucket is cut into groups of `size` layers, pages are padded to the largest.
"""

from __future__ import annotations

from math import ceil, inf

from kvpipe.cache.plan import (
    Capacity,
    EngineCapacity,
    GroupDemand,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    LayerPages,
    Padding,
    Plan,
    RankPlan,
)
from kvpipe.report.accounts import split_bytes
from kvpipe.report.run_input import Headline, ReportInput
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.runs import num_indices
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.stages.profiling.base import MemoryItem, MemoryProfile, RankMemory

GIB = 2**30


def full(block_size: int = 16, heads: int = 8, head_size: int = 128) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype="bfloat16"
    )


def sliding(window: int, block_size: int = 16, heads: int = 8) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=heads,
        head_size=128,
        dtype="bfloat16",
        sliding_window=window,
    )


def mamba(block_size: int = 1024, rows: int = 3000) -> MambaSpec:
    state = StateArray(name="ssm", shape=(rows, 4), dtype="float32")
    return MambaSpec(block_size=block_size, states=(state,))


def layers_of(*specs: tuple[KVCacheSpec, int]) -> list[CacheLayer]:
    """Alternating, as hybrid models are: (spec, how many layers) pairs."""
    counts = [number for _, number in specs]
    order = sorted((i / n, s) for s, n in enumerate(counts) for i in range(n))
    return [
        CacheLayer(name=f"model.layers.{i}.self_attn.attn", spec=specs[s][0])
        for i, (_, s) in enumerate(order)
    ]


def plan_of(
    layers: list[CacheLayer],
    memory: tuple[int, ...],
    length: int = 4096,
    in_flight: int = 2048,
    size: int | None = None,
    wanted: int | None = None,
) -> Plan:
    """One plan; `memory` has one entry a rank, and every rank holds all layers."""
    limits = RequestLimits(max_model_len=length, max_num_batched_tokens=in_flight)
    groups, padding, size = _groups(layers, size)
    page = groups[0].spec.page_size_bytes
    per_block = page * size
    blocks = min(memory) // per_block
    names = [g.layer_names for g in groups]
    tensors = tuple(
        KVCacheTensor(
            size_bytes=page * blocks,
            pages=tuple(
                LayerPages(layer=g[i], offset=0, block_stride=page) for g in names if i < len(g)
            ),
        )
        for i in range(size)
    )
    config = KVCacheConfig(
        num_blocks=blocks, tensors=tensors, groups=tuple(groups), bytes_per_block=per_block
    )
    cap = _capacity(groups, limits, blocks, per_block)
    line = EngineCapacity(
        engine="vllm_0_17",
        num_tokens=blocks // len(groups) * min(g.spec.block_size for g in groups),
        max_concurrency=blocks / sum(d.peak_blocks for d in cap.demands),
    )
    ranks = tuple(
        RankPlan(
            config=config,
            printed=line,
            available_bytes=m,
            required_bytes=per_block * sum(g.spec.max_blocks(limits) for g in groups),
            stranded_bytes=(m // per_block - blocks) * per_block,
        )
        for m in memory
    )
    return Plan(
        engine="kvpipe",
        limits=limits,
        requested_len=wanted or length,
        ranks=ranks,
        shared_layers=(),
        padding=tuple(padding),
        capacity=cap,
        printed=(line,),
    )


def _groups(
    layers: list[CacheLayer], size: int | None
) -> tuple[list[KVCacheGroupSpec], list[Padding], int]:
    page = max(layer.spec.page_size_bytes for layer in layers)
    buckets: dict[KVCacheSpec, list[str]] = {}
    for layer in layers:
        spec = layer.spec
        if spec.page_size_bytes < page:
            spec = spec.with_padded_page(page)
        buckets.setdefault(spec, []).append(layer.name)
    size = size or min(len(names) for names in buckets.values())
    groups, padding = [], []
    for spec, names in buckets.items():
        number = ceil(len(names) / size)
        missing = number * size - len(names)
        padding.append(Padding(num_layers=missing, percent=100 * missing / len(names)))
        groups += [
            KVCacheGroupSpec(layer_names=tuple(names[i::number]), spec=spec) for i in range(number)
        ]
    return groups, padding, size


def _capacity(
    groups: list[KVCacheGroupSpec], limits: RequestLimits, blocks: int, per_block: int
) -> Capacity:
    length = limits.max_model_len
    demands = tuple(
        GroupDemand(
            kind=g.spec.kind,
            peak_blocks=max(
                num_indices(
                    g.spec.resident(done, min(limits.tokens_in_flight, length - done), limits)
                )
                for done in range(length)
            ),
            steady_blocks=g.spec.steady_blocks(length, limits),
        )
        for g in groups
    )
    peak, steady = (
        sum(d.peak_blocks for d in demands),
        sum(d.steady_blocks for d in demands),
    )
    usable = max(0, blocks - 1)
    return Capacity(
        usable_blocks=usable,
        request_len=length,
        demands=demands,
        peak_bytes=peak * per_block,
        steady_bytes=steady * per_block,
        requests_at_peak=usable // peak,
        requests_steady=usable // steady,
        longest_request=length if usable >= peak else int(usable / peak * length),
        bytes_fixed=0,
        bytes_per_token=steady * per_block / length if length < inf else 0,
    )


def profile_of(
    memory: tuple[int, ...], total: int = 80 * GIB, weights: int = 15 * GIB
) -> MemoryProfile:
    return MemoryProfile(
        plugin="utilization",
        ranks=tuple(
            RankMemory(
                rank=i,
                total=MemoryItem(
                    name="total", num_bytes=total, how="nominal", source="device=h100_80gb"
                ),
                requested=MemoryItem(
                    name="requested",
                    num_bytes=int(0.9 * total),
                    how="set",
                    source="cache.gpu_memory_utilization=0.9 of the total",
                ),
                charged=(
                    MemoryItem(
                        name="weights",
                        num_bytes=weights,
                        how="exact",
                        source="8,030,261,248 parameters in bfloat16",
                    ),
                    MemoryItem(
                        name="activations", num_bytes=GIB + 7, how="estimated", source="formula"
                    ),
                    MemoryItem(name="other", num_bytes=GIB // 2, how="estimated", source="context"),
                ),
                available_kv=MemoryItem(
                    name="available_kv", num_bytes=m, how="exact", source="requested - charged"
                ),
            )
            for i, m in enumerate(memory)
        ),
    )


def report_of(plan: Plan, profile: MemoryProfile | None = None, **changes: object) -> ReportInput:
    memory = tuple(rank.available_bytes for rank in plan.ranks)
    profile = profile or profile_of(memory)
    values: dict[str, object] = {
        "headline": Headline(
            model="meta-llama/Llama-3.1-8B",
            engine=plan.engine,
            device="h100_80gb",
            backend="meta",
            backend_reason="the device is not in this machine, so nothing can be allocated on it",
        ),
        "plan": plan,
        "profile": profile,
        "accounts": split_bytes(plan, profile),
        "verify": VerifyReport(
            layers=32, tokens=321, rows=9, digest="0123456789abcdef" * 4, digest_of="the bytes"
        ),
        "address_map": {"ranks": [{"path": "uniform", "buffers": [1, 2]}]},
        "timings": {"profiling": 0.0012, "grouping": 0.0004, "allocation": 1.25},
        "config": {"cache": {"block_size": 16}},
        "backend_facts": {"backend": "meta"},
    }
    return ReportInput(**{**values, **changes})  # type: ignore[arg-type]
