"""A finished run -> other ways to group the same layers, each planned before it is named.

For a vLLM user: the release that pads less, blocks outermost where that wins, fewer tokens in
flight; for everybody the number of block tables, where there are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvpipe.answers.remedies import Advice, advice
from kvpipe.answers.replan import replan
from kvpipe.answers.trials import Goal, Promise, fits
from kvpipe.cache.plan import Capacity, Plan
from kvpipe.errors import KvpipeError
from kvpipe.notes import Note
from kvpipe.pipeline import Result, block_rules
from kvpipe.text.figures import count, percent, size

MANY_TABLES = 8
SPLIT_TABLES = 16  # so many come from layers of which there are few, and no other's size fits
WORTH = 0.02  # share of a request's steady bytes from which on another plan is named
MUCH_IN_FLIGHT = 4096  # tokens
FEWER_IN_FLIGHT = 2048


def regroupings(result: Result) -> Iterator[Note]:
    """Where layers need several tables. Of a plan that holds nothing there is nothing to say."""
    cap, plan = result.plan.capacity, result.plan
    if cap is None or len(plan.groups) < 2 or not cap.steady_bytes:
        return
    yield from _many_tables(result, cap)
    yield from _newer_release(result, cap)
    yield from _blocks_outermost(result, cap)
    yield from _in_flight(result, cap)
    yield from _unmeasured_subslots(result)


def _unmeasured_subslots(result: Result) -> Iterator[Note]:
    """`auto` without a trace: what sub-slots bring depends on what is served together."""
    asked = result.prepared.raw["grouping"].get("subslots") == "auto"
    if asked and any(group.spec.is_state for group in result.plan.groups):
        text = (
            "whole slots were planned: whether sub-slots serve sooner is measured by kvpipe "
            "replay, on a trace"
        )
        yield Note(text=text, knob="grouping.subslots")


def is_less(plan: Plan, cap: Capacity) -> bool:
    """Whether a request takes fewer bytes in steady state."""
    return plan.capacity is not None and plan.capacity.steady_bytes < cap.steady_bytes


def in_equal_slots(result: Result, cap: Capacity) -> str:
    """What the same layers take in equal slots, where that is less; "" elsewhere: then no other way
    to group them is known that takes less."""
    limits, plan = result.prepared.resolved.limits, result.plan
    same = {
        "engine": "kvpipe",
        "grouping": "hybrid",
        "scheduler.max_model_len": plan.limits.max_model_len,
        "scheduler.max_num_batched_tokens": limits.max_num_batched_tokens,
        "scheduler.max_num_seqs": result.prepared.resolved.max_num_seqs,
    }
    try:
        made = replan(result.prepared, result.profile.available_kv_bytes, same)
    except KvpipeError:
        return ""
    other = made.capacity
    if other is None or made.padding or not _takes_less(cap)(made):
        return ""
    tables = count(len(made.groups), "block table")
    return f"; in equal slots (engine=kvpipe) {_saved(cap, other)}, in {tables}"


def _tried(
    result: Result, changes: Mapping[str, Any], is_better: Promise = fits
) -> tuple[Advice, Capacity] | None:
    """The change, if it can be planned, runs the whole length and is better."""
    length = result.plan.limits.max_model_len
    way = advice(result.prepared, changes, "", Goal(promise=is_better))
    if way is None or way.plan.capacity is None or way.plan.limits.max_model_len < length:
        return None
    return way, way.plan.capacity


def _many_tables(result: Result, cap: Capacity) -> Iterator[Note]:
    """A table is copied, sliced and read in every step; in vLLM's own report 10 instead of 46 of
    them doubled throughput at batch 1 (pull request 51742)."""
    tables = len(result.plan.groups)
    if tables < MANY_TABLES:
        return
    text = f"{count(tables, 'block table')}: each is built, copied and read in every step"
    if result.plan.slots is None:
        if tables < SPLIT_TABLES:
            return
        text += "; layers that differ from the others in K/V heads, head size or dtype, such as a "
        text += "drafter's, make them many"
        yield Note(text=text)
        return
    change = {"grouping.objective": "fewest_tables"}
    if found := _tried(result, change, lambda plan: 2 * len(plan.groups) <= tables):
        way, other = found
        more = other.steady_bytes / cap.steady_bytes - 1
        text += (
            f"; {count(len(way.plan.groups), 'table')} would do, at {percent(abs(more), 1)} "
            f"{'more' if more > 0 else 'fewer'} bytes a request"
        )
        yield _note(text, way)


def _newer_release(result: Result, cap: Capacity) -> Iterator[Note]:
    """Groups are padded less from vLLM 0.18 on."""
    section = result.prepared.raw["engine"]
    if section["name"] == "vllm_0_17":
        change = {"engine.name": "vllm_0_33"}
    elif section["name"] == "vllm" and not section["version"].startswith("0.33"):
        change = {"engine.version": "0.33.0"}
    else:
        return
    if found := _tried(result, change, _takes_less(cap)):
        way, other = found
        yield _note(f"vLLM 0.33 pads these groups less: {_saved(cap, other)}", way)


def _blocks_outermost(result: Result, cap: Capacity) -> Iterator[Note]:
    """Layouts that put blocks outermost pack layers of several sizes: better or worse, by model."""
    rules = block_rules(result.prepared.config)
    if not rules.packed_groups or result.prepared.config.placement.name != "auto":
        return
    if found := _tried(result, {"placement.name": "blnhc"}, _takes_less(cap)):
        way, other = found
        text = (
            f"with blocks outermost (VLLM_KV_CACHE_LAYOUT=BLNHC, where the attention backend has "
            f"it) {_saved(cap, other)}, in {count(len(way.plan.groups), 'block table')} instead "
            f"of {len(result.plan.groups)}"
        )
        yield _note(text, way)


def _in_flight(result: Result, cap: Capacity) -> Iterator[Note]:
    """Windows hold the prompt's tokens in flight, once in a running server."""
    if result.plan.limits.max_num_batched_tokens < MUCH_IN_FLIGHT:
        return
    change = {"scheduler.max_num_batched_tokens": FEWER_IN_FLIGHT}
    if found := _tried(result, change, lambda plan: _running(plan) > cap.requests_running):
        way, other = found
        freed = (cap.peak_bytes - cap.steady_bytes) - (other.peak_bytes - other.steady_bytes)
        yield _note(
            f"tokens in flight hold {size(cap.peak_bytes - cap.steady_bytes)} of the cache; "
            f"{FEWER_IN_FLIGHT:,} of them give {size(freed)} back, and "
            f"{count(other.requests_running, 'request')} of {cap.request_len:,} tokens run "
            f"instead of {cap.requests_running:,}",
            way,
        )


def _running(plan: Plan) -> int:
    return plan.capacity.requests_running if plan.capacity else 0


def _takes_less(cap: Capacity) -> Any:
    def is_less(plan: Plan) -> bool:
        other = plan.capacity
        return other is not None and other.steady_bytes <= cap.steady_bytes * (1 - WORTH)

    return is_less


def _saved(cap: Capacity, other: Capacity) -> str:
    return (
        f"a request of {cap.request_len:,} tokens takes {size(other.steady_bytes)} in steady state "
        f"instead of {size(cap.steady_bytes)}"
    )


def _note(text: str, way: Advice) -> Note:
    return Note(text=text, knob=str(way), changes=({**way.changes},))
