"""A finished run -> warnings about the model on this plan, each with the setting that changes it.

What needs only the plan's own numbers is in report/_advice.py; these ask about the layers, or plan
the same request once more with one setting changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import gcd
from typing import Any

from kvpipe.cache.plan import Capacity, Plan
from kvpipe.errors import KvpipeError
from kvpipe.notes import Note
from kvpipe.pipeline import Prepared, Result, plan_with, prepare
from kvpipe.specs.base import KVCacheSpec
from kvpipe.text.figures import size

MUCH_PADDING = 20.0  # percent of a kind of layers
PADDING_BY_DRAFT = 5.0
GIANT_BLOCK = 512  # tokens
PLENTY = 2**50  # bytes: more than any request needs


def advise(result: Result) -> Iterator[Note]:
    """Every warning that applies; none costs more than one more plan."""
    cap = result.plan.capacity
    if cap is None:
        return
    yield from _group_size(result)
    yield from _giant_blocks(result.plan)
    yield from _state_slots(result)
    yield from _fp8_gain(result, cap)
    yield from _windows(result, cap)
    yield from _copies(result, cap)


def replan(prepared: Prepared, memory: tuple[int, ...], changes: Mapping[str, Any]) -> Plan:
    """The same request with some settings changed, in `memory` bytes a rank."""
    raw = deepcopy(dict(prepared.raw))
    for key, value in changes.items():
        section, _, name = key.partition(".")
        raw[section] = {**raw[section], name: value}
    changed = prepare(raw)
    ranks = len(changed.resolved.ranks)
    return plan_with(changed, memory if len(memory) == ranks else memory[:1] * ranks, compared=())


def _copies(result: Result, cap: Capacity) -> Iterator[Note]:
    """Data parallelism: the same plan several times."""
    copies = result.prepared.resolved.parallel.dp
    if copies > 1:
        yield Note(
            text=f"{copies} copies of these ranks hold {copies * cap.requests_at_peak:,} requests "
            f"of {cap.request_len:,} tokens at their peak, {copies * cap.requests_steady:,} in "
            "steady state; a request stays with its copy",
            knob="parallel.data_parallel_size",
        )


# --- groups ---
def _group_size(result: Result) -> Iterator[Note]:
    """Few layers of one kind set the size of all groups; draft layers most of all."""
    if not result.plan.padding:
        return
    buckets = _buckets(result.plan)
    fewest = min(buckets, key=lambda spec: len(buckets[spec]))
    drafting = _draft_names(result)
    is_draft = bool(drafting) and set(buckets[fewest]) <= drafting
    bound = PADDING_BY_DRAFT if is_draft else MUCH_PADDING
    padded = [p for p in result.plan.padding if p.percent >= bound]
    if not padded:
        return
    who = "draft" if is_draft else fewest.kind
    wasted = " and ".join(f"{p.num_layers} places ({p.percent:.2f}%)" for p in padded)
    ideal = gcd(*(len(names) for names in buckets.values()))
    groups = sum(len(names) // ideal for names in buckets.values())
    yield Note(
        text=f"groups have {max(len(g.layer_names) for g in result.plan.groups)} layers because "
        f"there are {len(buckets[fewest])} {who} layers, and leave {wasted} of the others empty; "
        f"groups of {ideal} would leave none, in {groups} groups instead of "
        f"{len(result.plan.groups)}",
        knob="model.draft=null, or a draft with layers like the model's"
        if is_draft
        else "cache.disable_hybrid_kv_cache_manager=true, where all tokens fit",
        is_warning=True,
    )


def _buckets(plan: Plan) -> dict[KVCacheSpec, list[str]]:
    """Layers by the spec of their groups, over all ranks."""
    found: dict[KVCacheSpec, dict[str, None]] = {}
    for rank in plan.ranks:
        for group in rank.config.groups:
            found.setdefault(group.spec, {}).update(dict.fromkeys(group.layer_names))
    return {spec: list(names) for spec, names in found.items() if names}


def _draft_names(result: Result) -> set[str]:
    model = result.prepared.resolved.model
    first = model.num_layers - model.num_draft_layers
    return {cache.name for cache in model.caches if cache.layer >= first}


def _has_states(plan: Plan) -> bool:
    return any(
        group.layer_spec(name).is_state for group in plan.groups for name in group.layer_names
    )


def _giant_blocks(plan: Plan) -> Iterator[Note]:
    """Attention blocks that grew until one holds a state."""
    if not _has_states(plan):
        return
    sizes = [
        group.spec.block_size
        for group in plan.groups
        if group.layer_names and not group.layer_spec(group.layer_names[0]).is_state
    ]
    if sizes and max(sizes) >= GIANT_BLOCK:
        yield Note(
            text=f"attention blocks are {max(sizes):,} tokens, so that one holds a state: a "
            f"request leaves up to {max(sizes) - 1:,} tokens of its last block unused, prefixes "
            "are cached in such steps, and a kernel with a smaller limit must split them",
            knob=("cache.mamba_ssm_cache_dtype=bfloat16, or " if _wide_states(plan) else "")
            + "a larger parallel.tensor_parallel_size",
            is_warning=True,
        )


def _wide_states(plan: Plan) -> bool:
    """Whether some state is kept in 32 bits."""
    specs = {group.layer_spec(name) for group in plan.groups for name in group.layer_names}
    return any(
        array.dtype == "float32" for spec in specs if spec.is_state for array in spec.page_arrays()
    )


def _state_slots(result: Result) -> Iterator[Note]:
    """Each running request needs a block for its state: more requests than blocks cannot start."""
    slots, asked = result.plan.num_blocks, result.prepared.resolved.max_num_seqs
    if _has_states(result.plan) and slots < asked:
        yield Note(
            text=f"scheduler.max_num_seqs={asked:,} is more than the {slots:,} blocks that can "
            "hold a state; vLLM refuses to start",
            knob=f"scheduler.max_num_seqs={slots}, the largest legal value, or a shorter "
            "scheduler.max_model_len",
            is_warning=True,
        )


# --- what if ---
def _fp8_gain(result: Result, cap: Capacity) -> Iterator[Note]:
    """8 bits halve K and V; states and what pads to them stay."""
    resolved = result.prepared.resolved
    if not resolved.cache_dtype.startswith("fp8_e") or not _has_states(result.plan):
        return
    other = _replanned(result, {"cache.cache_dtype": "auto"})
    if other is None or not cap.steady_bytes:
        return
    gain = other.steady_bytes / cap.steady_bytes
    if gain < 1.995:
        yield Note(
            text=f"fp8 makes a request of {cap.request_len:,} tokens {gain:.2f} times smaller, not "
            "2: it halves K and V, and states keep their bytes",
            knob="cache.cache_dtype=auto, or longer requests",
            is_warning=True,
        )


def _windows(result: Result, cap: Capacity) -> Iterator[Note]:
    """What the windows save: the same request with every layer keeping all tokens."""
    is_off = result.prepared.config.cache.disable_hybrid_kv_cache_manager
    bounded = any(group.spec.frees_tokens for group in result.plan.groups)
    if is_off or not bounded or len(result.plan.groups) < 2:
        return
    other = _replanned(result, {"cache.disable_hybrid_kv_cache_manager": True})
    if other is not None and other.steady_bytes > cap.steady_bytes:
        yield Note(
            text=f"with the hybrid manager off, a request of {cap.request_len:,} tokens would hold "
            f"{size(other.steady_bytes)} in steady state instead of {size(cap.steady_bytes)}",
            knob="leave cache.disable_hybrid_kv_cache_manager=false",
        )


def _replanned(result: Result, changes: Mapping[str, Any]) -> Capacity | None:
    """The capacity with other settings and memory enough; None where it cannot be planned."""
    length = {"scheduler.max_model_len": result.plan.limits.max_model_len}
    memory = (PLENTY,) * len(result.plan.ranks)
    try:
        return replan(result.prepared, memory, {**changes, **length}).capacity
    except KvpipeError:
        return None
