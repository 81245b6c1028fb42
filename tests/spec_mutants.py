"""Specs with one wrong answer each: what the walk of `spec_walk` must notice, in any kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import product
from typing import Any

from spec_walk import LENGTHS, limits_of, steps

from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.runs import indices, joined

Answer = Callable[..., Any]


def _runs(change: Callable[[list[int]], list[int]]) -> Callable[[Answer], Answer]:
    """`resident` with other indices."""

    def wrap(old: Answer) -> Answer:
        def resident(self: Any, *step: Any) -> Any:
            held = change(list(indices(old(self, *step))))
            return joined(*(range(i, i + 1) for i in sorted(held)))

        return resident

    return wrap


def _value(change: Callable[[Any], Any]) -> Callable[[Answer], Answer]:
    """The same question, its answer changed."""

    def wrap(old: Answer) -> Answer:
        return lambda self, *asked: change(old(self, *asked))

    return wrap


# What is wrong -> (which answer, how).
MUTATIONS: dict[str, tuple[str, Callable[[Answer], Answer]]] = {
    "resident frees three quarters of the live window": (
        "resident",
        _runs(lambda held: held[len(held) * 3 // 4 :]),
    ),
    "resident forgets the first block": ("resident", _runs(lambda held: held[1:])),
    "resident forgets the last block": ("resident", _runs(lambda held: held[:-1])),
    "resident forgets the middle block": (
        "resident",
        _runs(lambda held: [i for at, i in enumerate(held) if at * 2 != len(held) - 1]),
    ),
    "resident frees one block late": (
        "resident",
        _runs(lambda held: [i for i in held[:1] if i] and [held[0] - 1, *held] or held),
    ),
    "resident frees nothing": (
        "resident",
        _runs(lambda held: list(range(held[-1] + 1)) if held else held),
    ),
    "resident takes a block more than it needs": (
        "resident",
        _runs(lambda held: [*held, held[-1] + 1 if held else 0]),
    ),
    "survives forgets the first block": ("survives", _runs(lambda held: held[1:])),
    "survives forgets the last block": ("survives", _runs(lambda held: held[:-1])),
    "survives keeps a block that nobody reads": (
        "survives",
        _runs(lambda held: [i for i in held[:1] if i] and [held[0] - 1, *held] or held),
    ),
    "max_blocks is a third": ("max_blocks", _value(lambda n: n // 3)),
    "max_blocks is two blocks more": ("max_blocks", _value(lambda n: n + 2)),
    "peak_blocks is a third": ("peak_blocks", _value(lambda n: n // 3)),
    "peak_blocks is a block less": ("peak_blocks", _value(lambda n: max(0, n - 1))),
    "peak_blocks is a block more": ("peak_blocks", _value(lambda n: n + 1)),
    "steady_blocks is a block less": ("steady_blocks", _value(lambda n: max(0, n - 1))),
    "steady_blocks is a block more": ("steady_blocks", _value(lambda n: n + 1)),
    "steady_cost forgets the first block": (
        "steady_cost",
        _value(lambda cost: (max(0, cost[0] - 1), cost[1])),
    ),
    "steady_cost does not grow": ("steady_cost", _value(lambda cost: (cost[0], 0.0))),
    "steady_cost is two blocks more": ("steady_cost", _value(lambda cost: (cost[0] + 2, cost[1]))),
    "written forgets its first block": (
        "written",
        _value(lambda at: range(min(at.stop, at.start + 1), at.stop)),
    ),
    "written ends a token early": (
        "written",
        _value(lambda at: range(at.start, max(at.start, at.stop - 1))),
    ),
    "written goes on for a block": ("written", _value(lambda at: range(at.start, at.stop + 20))),
    "hit_length serves everything": (
        "hit_length",
        lambda old: lambda self, cached: len(cached) * self.block_size,
    ),
    "hit_length serves a block more": (
        "hit_length",
        lambda old: (
            lambda self, cached: min(
                len(cached) * self.block_size, old(self, cached) + self.block_size
            )
        ),
    ),
    "hit_length serves nothing": ("hit_length", _value(lambda n: 0)),
    "merge takes anybody": ("merge", lambda old: lambda self, others, ignore=None: self),
    "same_type takes anybody": ("same_type", lambda old: lambda self, other: True),
}


def mutant(spec: KVCacheSpec, mutation: str) -> KVCacheSpec:
    """The spec, in a class of the same name and kind with that one answer wrong."""
    question, wrap = MUTATIONS[mutation]
    old = type(spec)
    body = {question: wrap(getattr(old, question)), "__module__": old.__module__}
    wrong: Any = type(old.__name__, (old,), body)
    return wrong(**{f.name: getattr(spec, f.name) for f in fields(spec)})


def says_something_else(spec: KVCacheSpec, mutation: str) -> bool:
    """Whether the mutant differs in some answer: one that does not is no mutant of this spec."""
    question, _ = MUTATIONS[mutation]
    wrong = mutant(spec, mutation)
    if question in ("merge", "same_type"):
        return len({s.bound for s in type(spec).examples()}) > 1 and spec.frees_tokens
    if question == "hit_length":
        cached = product([False, True], repeat=5)
        return any(spec.hit_length(c) != wrong.hit_length(c) for c in cached)
    for limits in limits_of(spec):
        for asked in _asked(question, limits):
            if getattr(spec, question)(*asked) != getattr(wrong, question)(*asked):
                return True
    return False


def _asked(question: str, limits: Any) -> list[tuple[Any, ...]]:
    if question in ("resident", "survives", "written"):
        return [(*step, limits) for step in steps(limits)]
    if question == "steady_blocks":
        return [(n, limits) for n in LENGTHS]
    return [(limits,)]
