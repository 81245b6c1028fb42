"""A document with what repeats written once, and back again: nothing is lost.

Ranks that are equal, and layers that differ only in their number, stand in a list as one item

    {"$repeat": 61, "first": {...}, "step": {"layer": [1], "views": {"0": {"buffer": 1}}}}

which is `first`, then 60 more: each number named in `step` grows by that much from one to the next,
and each text by a list, one step a number in it ("model.layers.7.self_attn.attn": [1]). What `step`
does not name stays. `unfolded` gives the whole document; without kvpipe it is those two sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

REPEAT = "$repeat"
_FEWEST_NUMBERS = 8  # a shape of three equal sizes is easier to read as it stands
_LEAVES = frozenset({str, int, float, bool, type(None)})
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,15})")


class SharedPart(dict[str, Any]):
    """A part of the documents of several jobs, which is folded once. It is for reading."""

    @cached_property
    def folded(self) -> dict[str, Any]:
        return {key: folded(item) for key, item in self.items()}


class SharedList(list[Any]):
    """As SharedPart, a list."""

    @cached_property
    def folded(self) -> list[Any]:
        return list(_folded_items(self))


def folded(value: Any) -> Any:
    """The same value, runs in its lists written as one item each. Of JSON's own types."""
    if type(value) in _LEAVES:  # most of a document
        return value
    if isinstance(value, (SharedPart, SharedList)):
        return value.folded
    if isinstance(value, dict):
        return {key: folded(item) for key, item in value.items()}
    return list(_folded_items(value)) if isinstance(value, list) else value


def unfolded(value: Any) -> Any:
    """What was folded, whole."""
    if isinstance(value, Mapping):
        return {key: unfolded(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    whole: list[Any] = []
    for item in value:
        if isinstance(item, Mapping) and REPEAT in item:
            first = unfolded(item["first"])
            whole += [_stepped(first, item.get("step"), n) for n in range(item[REPEAT])]
        else:
            whole.append(unfolded(item))
    return whole


def _folded_items(items: Sequence[Any]) -> Iterator[Any]:
    at = 0
    while at < len(items):
        step, times = _run(items, at)
        if times > 1:
            found = {REPEAT: times, "first": folded(items[at])}
            yield {**found, "step": step} if step else found
        else:
            yield folded(items[at])
        at += times


def _run(items: Sequence[Any], at: int) -> tuple[Any, int]:
    """How many items from here are one run, and its step."""
    step = _step(items[at], items[at + 1]) if at + 1 < len(items) else None
    if step is None:
        return None, 1
    times = 2
    while at + times < len(items) and _step(items[at + times - 1], items[at + times]) == step:
        times += 1
    if not isinstance(items[at], dict):
        return step, times if times >= _FEWEST_NUMBERS else 1
    return step, times if times > 2 or _is_next(step) else 1


def _is_next(step: Any) -> bool:
    """Two items alike, or two that are numbered one after the other, are worth folding."""
    if isinstance(step, dict):
        return len(step) <= 1 and all(map(_is_next, step.values()))
    return step in (1, [1])


# --- the step from one item to the next, and its use; None: they are not alike -------------------
def _step(one: Any, other: Any) -> Any:
    """{} where they are equal."""
    if one is other:
        return {}
    if type(one) is not type(other):
        return None
    if isinstance(one, dict):
        return _step_of_parts(one, other) if [*one] == [*other] else None
    if isinstance(one, list):
        same = len(one) == len(other)
        numbered = [{str(i): part for i, part in enumerate(side)} for side in (one, other)]
        return _step_of_parts(*numbered) if same else None
    if one == other:
        return {}
    if isinstance(one, str):
        return _step_of_texts(one, other)
    return other - one if isinstance(one, int) and not isinstance(one, bool) else None


def _step_of_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> Any:
    steps: dict[str, Any] = {}
    for key, part in one.items():
        step = _step(part, other[key])
        if step is None:
            return None
        if step != {}:
            steps[key] = step
    return steps


def _step_of_texts(one: str, other: str) -> list[int] | None:
    ones, others = _NUMBER.split(one), _NUMBER.split(other)
    if len(ones) != len(others) or ones[::2] != others[::2]:
        return None
    return [int(b) - int(a) for a, b in zip(ones[1::2], others[1::2], strict=True)]


def _stepped(first: Any, step: Any, times: int) -> Any:
    if not step:
        return first
    if isinstance(first, Mapping):
        return {key: _stepped(part, step.get(key), times) for key, part in first.items()}
    if isinstance(first, list):
        return [_stepped(part, step.get(str(i)), times) for i, part in enumerate(first)]
    if isinstance(first, str):
        parts = _NUMBER.split(first)
        parts[1::2] = [str(int(n) + s * times) for n, s in zip(parts[1::2], step, strict=True)]
        return "".join(parts)
    return first + step * times
