"""Plan, MemoryProfile -> every byte of each rank's device, under one cause each.

The causes of one rank add up to its total exactly, at either of two loads of whole requests of
the planned length: `peak` (each one in its largest prefill step) and `steady` (each one decoding).
Within one block of group g, bytes_per_block of a rank is

    |  real pages of g's layers  |  page padding  |  padding layers: room other groups need  |

and of the real pages of one request's blocks, for arrays with a row a token,

    [ tokens a window no longer sees | tokens it needs | the free end of the last block ]
      window_alignment                 payload           block_tails
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvpipe.cache.plan import Capacity, GroupDemand, KVCacheConfig, KVCacheGroupSpec, Plan, RankPlan
from kvpipe.errors import SpecError
from kvpipe.specs.answers import held_at
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.runs import num_indices
from kvpipe.stages.profiling.base import MemoryProfile, RankMemory
from kvpipe.stages.validation.base import ResolvedRun

# Cause -> what it means; in the order in which reports list and maps draw them.
CAUSES: Mapping[str, str] = {
    "weights": "the model's parameters on this rank",
    "activations": "the largest forward pass",
    "other": "driver context, graphs, communication",
    "payload": "keys, values and states that requests need",
    "prefill_in_flight": "blocks held only while a prompt is being read",
    "block_tails": "the free end of each request's last block",
    "window_alignment": "held by a window beyond what it sees: its edge lies inside a block",
    "head_replication": "second copies of KV heads, because there are more ranks than heads",
    "padding_layers": "layers a group lacks, because all groups get the room of the largest",
    "page_padding": "pages enlarged so that all groups have equal ones",
    "null_block": "one block that no request is ever given",
    "free_blocks": "too few blocks for one more request, or max_num_seqs is reached",
    "unused_richer_rank": "blocks this rank could hold and the poorest cannot",
    "out_of_reach": "given to the cache, yet no whole block, or cut off by an override",
    "not_requested": "memory of the device that this run does not ask for",
}
KV_CAUSES = tuple(CAUSES)[3:14]  # payload ... out_of_reach: they share the bytes given to the cache


@dataclass(frozen=True, kw_only=True)
class RankAccount:
    """Bytes by cause, all of CAUSES, on one rank. requests_peak, requests_steady: the loads.

    total_bytes: the device, or what is charged to it where that is more: the difference is
    overcommitted_bytes (a cache size set by hand, an override).
    """

    rank: int
    total_bytes: int
    overcommitted_bytes: int
    requests_peak: int
    requests_steady: int
    peak: Mapping[str, int]
    steady: Mapping[str, int]


def split_bytes(
    plan: Plan,
    profile: MemoryProfile,
    max_num_seqs: int | None = None,
    replicas: Mapping[str, int] | None = None,
) -> tuple[RankAccount, ...]:
    """One account a rank. max_num_seqs: no load is larger (None: memory alone decides).
    replicas: on how many ranks the same KV heads of a layer lie (absent: one)."""
    return tuple(
        _account(plan, rank, memory, max_num_seqs, replicas or {})
        for rank, memory in zip(plan.ranks, profile.ranks, strict=True)
    )


def _account(
    plan: Plan,
    rank: RankPlan,
    memory: RankMemory,
    max_num_seqs: int | None,
    replicas: Mapping[str, int],
) -> RankAccount:
    cap = plan.capacity
    most = max_num_seqs if max_num_seqs is not None else 2**63
    at_peak = min(cap.requests_at_peak, most) if cap else 0
    steady = min(cap.requests_steady, most) if cap else 0
    outside = _outside_pool(rank, memory)
    total = sum(outside.values()) + rank.config.size_bytes
    splits = []
    for requests, in_flight in ((at_peak, True), (steady, False)):
        pool = _pool(plan, rank.config, requests, in_flight, replicas)
        splits.append(_by_cause(pool, outside))
    return RankAccount(
        rank=memory.rank,
        total_bytes=total,
        overcommitted_bytes=total - memory.total.num_bytes,
        requests_peak=at_peak,
        requests_steady=steady,
        peak=splits[0],
        steady=splits[1],
    )


def split_running(
    plan: Plan,
    rank: int,
    memory: RankMemory,
    requests: int,
    replicas: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Bytes of one rank's device by cause while that many requests run: all decode but one, which
    reads its prompt (`Capacity.blocks_of`). Nothing bounds the load: what the pool lacks are
    negative `free_blocks`, so that the causes always add up to the same sum."""
    of_rank = plan.ranks[rank]
    outside = _outside_pool(of_rank, memory)
    pool = _pool(plan, of_rank.config, requests, False, replicas or {})
    if plan.capacity is not None:
        first = plan.capacity.blocks_of(requests) - requests * plan.capacity.steady_blocks
        prompt = first * of_rank.config.bytes_per_block
        pool["prefill_in_flight"] = pool.get("prefill_in_flight", 0) + prompt
        pool["free_blocks"] -= prompt
    return _by_cause(pool, outside)


def _by_cause(pool: Mapping[str, int], outside: Mapping[str, int]) -> dict[str, int]:
    return {cause: pool.get(cause, 0) + outside.get(cause, 0) for cause in CAUSES}


def _outside_pool(rank: RankPlan, memory: RankMemory) -> dict[str, int]:
    """Everything but the blocks: what is charged, what no block is made of, what is not asked."""
    outside: Counter[str] = Counter()
    for item in memory.charged:
        outside[item.name if item.name in ("weights", "activations") else "other"] += item.num_bytes
    outside["unused_richer_rank"] = rank.stranded_bytes
    spent = rank.config.size_bytes + rank.stranded_bytes
    # An override may ask for more than is available: then nothing is left over.
    outside["out_of_reach"] = max(0, memory.available_kv_bytes - spent)
    charged = sum(outside.values()) + rank.config.size_bytes
    outside["not_requested"] = max(0, memory.total.num_bytes - charged)
    return dict(outside)


def _pool(
    plan: Plan, config: KVCacheConfig, requests: int, in_flight: bool, replicas: Mapping[str, int]
) -> dict[str, int]:
    """The bytes of all blocks of one rank by cause, while `requests` requests run."""
    split: Counter[str] = Counter()
    cap = plan.capacity
    if cap is None:
        split["out_of_reach"] = config.size_bytes
        return dict(split)
    held = 0
    for group, demand in zip(config.groups, cap.demands, strict=True):
        held += requests * (demand.peak_blocks if in_flight else demand.steady_blocks)
        one = _request(group, demand, cap, plan.limits, config.bytes_per_block, in_flight, replicas)
        for cause, num_bytes in one.items():
            split[cause] += requests * num_bytes
    if in_flight:
        held += requests * cap.scratch_blocks
        spare = requests * cap.scratch_blocks * config.bytes_per_block
        split["prefill_in_flight"] += spare
    split["null_block"] = (config.num_blocks - cap.usable_blocks) * config.bytes_per_block
    split["free_blocks"] = (cap.usable_blocks - held) * config.bytes_per_block
    # Tensors may be rounded up beyond their blocks.
    split["out_of_reach"] += config.size_bytes - config.num_blocks * config.bytes_per_block
    return dict(split)


def _request(
    group: KVCacheGroupSpec,
    demand: GroupDemand,
    cap: Capacity,
    limits: RequestLimits,
    bytes_per_block: int,
    in_flight: bool,
    replicas: Mapping[str, int],
) -> dict[str, int]:
    """What one request takes of one group on one rank, by cause."""
    blocks = demand.peak_blocks if in_flight else demand.steady_blocks
    steady = min(blocks, demand.steady_blocks)
    layers = Counter((group.layer_spec(name), replicas.get(name, 1)) for name in group.layer_names)
    split: Counter[str] = Counter()
    pages = 0
    for (spec, copies), num_layers in layers.items():
        pages += num_layers * spec.page_size_bytes
        padding = spec.page_size_bytes - spec.real_page_size_bytes
        split["page_padding"] += num_layers * padding * blocks
        split["prefill_in_flight"] += num_layers * spec.real_page_size_bytes * (blocks - steady)
        for cause, num_bytes in _layer(spec, steady, cap.request_len, limits, copies).items():
            split[cause] += num_layers * num_bytes
    split["padding_layers"] = (bytes_per_block - pages) * blocks
    return dict(split)


def _layer(
    spec: KVCacheSpec, blocks: int, length: int, limits: RequestLimits, copies: int
) -> dict[str, int]:
    """The real pages of `blocks` blocks of one layer, for a request of `length` decoding tokens."""
    needed, tail = _tokens(spec, blocks, length, limits)
    split: Counter[str] = Counter()
    for array in spec.page_arrays():
        page = array.num_bytes(spec.block_size)
        payload, tails = (n * page // spec.block_size for n in (needed, tail))
        if not array.per_token:
            payload, tails = blocks * page, 0
        split["payload"] += payload // copies
        split["head_replication"] += payload - payload // copies
        split["block_tails"] += tails
        split["window_alignment"] += blocks * page - payload - tails
    # Pages may hold alignment between their arrays: real, and no array's.
    held = blocks * spec.real_page_size_bytes
    split["page_padding"] += held - sum(split.values())
    return dict(split)


def _tokens(spec: KVCacheSpec, blocks: int, length: int, limits: RequestLimits) -> tuple[int, int]:
    """(tokens needed, free token places at the end) of one request with `blocks` blocks.

    Asked of the spec itself: with blocks of one token, its resident blocks are its tokens.
    """
    room = blocks * spec.block_size
    held = held_at(spec, length - 1, 1, limits)
    try:
        seen = held_at(spec.with_block_size(1), length - 1, 1, limits)
    except SpecError:  # blocks of one token are illegal here: all places count as needed
        return room, 0
    needed = min(num_indices(seen), room)
    ends = held[-1].stop * spec.block_size - seen[-1].stop if held and seen else 0
    return needed, min(max(0, ends), room - needed)


def replicas_of(resolved: ResolvedRun) -> dict[str, int]:
    """Layer -> on how many ranks the same bytes of it lie. Tensor parallelism beyond the KV heads
    of the model (a latent row is one head) copies them; context ranks share the tokens of a copy.
    """
    heads = {c.name: int(c.fields.get("num_kv_heads") or 1) for c in resolved.model.caches}
    tp, dcp = resolved.parallel.tp, resolved.parallel.dcp
    return {
        layer.name: max(1, tp * _heads_here(layer.spec) // (heads[layer.name] * dcp))
        for rank in resolved.ranks
        for layer in rank.layers
    }


def _heads_here(spec: KVCacheSpec) -> int:
    return max((array.num_heads for array in spec.page_arrays() if array.per_token), default=0)
