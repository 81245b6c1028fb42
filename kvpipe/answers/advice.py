"""A finished run -> warnings about the model on this plan, each with the setting that changes it.

What needs only the plan's own numbers is in report/derived_notes.py and plan_hints.py; these ask
about the layers, or plan the same request once more with one setting changed. What plans again is
imported where that is asked for: most runs have nothing to advise, and start sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvpipe.cache.plan import Capacity, Plan
from kvpipe.errors import KvpipeError
from kvpipe.notes import Note
from kvpipe.pipeline import Prepared, Result, plan_with
from kvpipe.specs.base import KVCacheSpec
from kvpipe.text.figures import size

MUCH_PADDING = 20.0  # percent of a kind of layers
PADDING_BY_DRAFT = 5.0
GIANT_BLOCK = 512  # tokens
_HYBRID = "cache.disable_hybrid_kv_cache_manager"


def advise(result: Result) -> Iterator[Note]:
    """Every warning that applies; what it recommends was planned."""
    cap = result.plan.capacity
    if cap is None:
        return
    yield from _group_size(result, cap)
    yield from _giant_blocks(result)
    yield from _state_slots(result)
    yield from _fp8_gain(result, cap)
    yield from _windows(result, cap)
    yield from _copies(result, cap)
    yield from _lowered(result)
    if len(result.plan.groups) > 1:
        from kvpipe.answers.regroupings import regroupings

        yield from regroupings(result)


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
def _group_size(result: Result, cap: Capacity) -> Iterator[Note]:
    """Few layers of one kind set the size of all groups; draft layers most of all."""
    if not result.plan.padding:
        return
    buckets = _layers_by_spec(result.plan)
    fewest = min(buckets, key=lambda spec: len(buckets[spec]))
    drafting = _draft_names(result)
    is_draft = bool(drafting) and set(buckets[fewest]) <= drafting
    bound = PADDING_BY_DRAFT if is_draft else MUCH_PADDING
    padded = [p for p in result.plan.padding if p.percent >= bound]
    if not padded:
        return
    from kvpipe.answers.regroupings import in_equal_slots, is_less

    who = "draft" if is_draft else fewest.kind
    wasted = " and ".join(f"{p.num_layers} places ({p.percent:.2f}%)" for p in padded)
    text = (
        f"groups have {max(len(g.layer_names) for g in result.plan.groups)} layers because "
        f"there are {len(buckets[fewest])} {who} layers, and leave {wasted} of the others empty"
        + in_equal_slots(result, cap)
    )
    if is_draft and _is_whole_without(result, drafting):
        text += "; planned without the draft, none is empty"
    changes = _without_draft(result) if is_draft else {_HYBRID: True}
    tried = [(changes, "no layer is padded", lambda plan: not plan.padding and is_less(plan, cap))]
    yield from _recommending(result.prepared, text, tried)


def _is_whole_without(result: Result, drafting: set[str]) -> bool:
    """Whether the same layers but for the draft's fill their groups."""
    resolved = result.prepared.resolved
    ranks = tuple(
        replace(rank, layers=tuple(each for each in rank.layers if each.name not in drafting))
        for rank in resolved.ranks
    )
    alone = replace(result.prepared, resolved=replace(resolved, ranks=ranks))
    try:
        plan = plan_with(alone, result.profile.available_kv_bytes, compared=())
    except KvpipeError:
        return False
    return not plan.padding


def _without_draft(result: Result) -> dict[str, Any]:
    """A model that is read with its draft can be read without it; a preset has its layers."""
    has_draft = getattr(result.prepared.config.plugins["model"].options, "draft", None)
    return {"model.draft": None} if has_draft else {}


Tried = tuple[Mapping[str, Any], str, Callable[[Plan], bool]]


def _recommending(prepared: Prepared, text: str, tries: Iterable[Tried]) -> Iterator[Note]:
    """A warning, with those of the changes that were planned and keep their promise."""
    from kvpipe.answers.remedies import advice
    from kvpipe.answers.trials import Goal

    found = [
        way
        for changes, words, promise in tries
        if changes and (way := advice(prepared, changes, words, Goal(promise=promise)))
    ]
    told = ", or ".join(f"{way}" + (f", {way.promise}" if way.promise else "") for way in found)
    yield Note(
        text=text,
        knob=told,
        is_warning=True,
        changes=tuple({**way.changes} for way in found),
    )


def _layers_by_spec(plan: Plan) -> dict[KVCacheSpec, list[str]]:
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


def _giant_blocks(result: Result) -> Iterator[Note]:
    """Attention blocks that grew until one holds a state."""
    plan = result.plan
    largest = _attention_block(plan)
    if not _has_states(plan) or largest < GIANT_BLOCK:
        return
    from kvpipe.answers.remedies import advice
    from kvpipe.answers.trials import Goal

    text = (
        f"attention blocks are {largest:,} tokens, so that one holds a state: a request leaves up "
        f"to {largest - 1:,} tokens of its last block unused, prefixes are cached in such steps, "
        "and a kernel with a smaller limit must split them"
    )
    tries: list[Tried] = []
    if _wide_states(plan):
        tries.append(({"cache.mamba_ssm_cache_dtype": "bfloat16"}, "", _smaller_than(largest)))
    ranks = result.prepared.config.parallel.tensor_parallel_size
    more = [n for n in (2, 4, 8, 16) if n > ranks]
    for n in more:  # the first that helps: states and K/V shrink alike until heads are replicated
        change = {"parallel.tensor_parallel_size": n}
        if advice(result.prepared, change, "", Goal(promise=_smaller_than(largest))):
            tries.append((change, "", _smaller_than(largest)))
            break
    yield from _recommending(result.prepared, text, tries)


def _smaller_than(block: int) -> Callable[[Plan], bool]:
    return lambda plan: _attention_block(plan) < block


def _attention_block(plan: Plan) -> int:
    """Tokens of the largest block of layers that are no states."""
    return max(
        (
            group.spec.block_size
            for group in plan.groups
            if group.layer_names and not group.layer_spec(group.layer_names[0]).is_state
        ),
        default=0,
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
    if not _has_states(result.plan) or slots >= asked:
        return
    text = (
        f"scheduler.max_num_seqs={asked:,} is more than the {slots:,} blocks that can hold a "
        "state; vLLM refuses to start"
    )
    promise = "the largest legal value"
    change = {"scheduler.max_num_seqs": slots}
    tried = [(change, promise, lambda plan: plan.num_blocks >= slots)]
    yield from _recommending(result.prepared, text, tried)


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
        from kvpipe.answers.trials import fits

        text = (
            f"fp8 makes a request of {cap.request_len:,} tokens {gain:.2f} times smaller, not 2: "
            "it halves K and V, and states keep their bytes"
        )
        change = {"cache.cache_dtype": "auto"}
        yield from _recommending(result.prepared, text, [(change, "16 bits fit, too", fits)])


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
            knob=_HYBRID,
        )


def _lowered(result: Result) -> Iterator[Note]:
    """A length that was lowered to what fits, and what would make it the whole length."""
    wanted = result.plan.requested_len
    if wanted <= result.plan.limits.max_model_len:
        return
    from kvpipe.answers.remedies import ways_out
    from kvpipe.answers.trials import Goal

    whole = Goal(promise=lambda plan: plan.limits.max_model_len >= wanted)
    found = ways_out(result.prepared, whole)
    ways = [way for way in found if way.is_sure] or found
    if ways:
        word = "fit" if ways[0].is_sure else "may fit"
        yield Note(
            text=f"all {wanted:,} tokens {word} with one change",
            knob=", or ".join(map(str, ways)),
            changes=tuple({**way.changes} for way in ways),
        )


def _replanned(result: Result, changes: Mapping[str, Any]) -> Capacity | None:
    """The capacity with other settings and memory enough; None where it cannot be planned."""
    from kvpipe.answers.remedies import PLENTY
    from kvpipe.answers.replan import replan

    length = {"scheduler.max_model_len": result.plan.limits.max_model_len}
    memory = (PLENTY,) * len(result.plan.ranks)
    try:
        return replan(result.prepared, memory, {**changes, **length}).capacity
    except KvpipeError:
        return None
