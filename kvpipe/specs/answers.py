"""What a spec answers is what its contract says, or its author is told so by name.

A third party's mistake would otherwise show wherever its answer is used, and look like ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvpipe.errors import ConfigError, Problem, SpecError
from kvpipe.specs.base import KVCacheSpec, PageArray, RequestLimits
from kvpipe.specs.runs import Runs, first_run_problem

RUNS = "ascending ranges of block indices with holes between them, as a tuple"


def held_at(spec: KVCacheSpec, computed: int, new: int, limits: RequestLimits) -> Runs:
    """`spec.resident(...)`; ConfigError that names the spec where that is no `Runs`."""
    runs = spec.resident(computed, new, limits)
    if type(runs) is tuple and len(runs) == 1:  # the usual answer, asked for at every step
        run = runs[0]
        if type(run) is range and run.step == 1 and 0 <= run.start < run.stop:
            return runs
    if problem := first_run_problem(runs):
        raise _wrong(spec, f"resident({computed}, {new}, ...)", RUNS, problem)
    return runs


def check_answers(spec: KVCacheSpec, limits: RequestLimits) -> None:
    """ConfigError naming the spec and the first question that it answers with something else."""
    for question, expected, ask, holds in _QUESTIONS:
        try:
            answer = ask(spec, limits)
        except SpecError:  # an answer, too: it does not work under these limits
            continue
        if not holds(answer):
            got = f"{type(answer).__name__} {answer!r}"
            raise _wrong(spec, question, expected, got)


def _wrong(spec: KVCacheSpec, question: str, expected: str, got: str) -> ConfigError:
    where = f"mend {type(spec).__module__}.{type(spec).__qualname__}"
    return ConfigError(
        Problem(f"spec '{spec.kind}'", f"{question} to answer {expected}", got, where)
    )


def _is_count(answer: Any) -> bool:
    return type(answer) is int and answer >= 0


def _is_cost(answer: Any) -> bool:
    return (
        isinstance(answer, tuple)
        and len(answer) == 2
        and all(isinstance(part, (int, float)) and part >= 0 for part in answer)
    )


def _are_arrays(answer: Any) -> bool:
    return isinstance(answer, tuple) and all(isinstance(array, PageArray) for array in answer)


_Ask = Callable[[KVCacheSpec, RequestLimits], Any]
_COUNT = "a number of blocks"
# Question, what it must answer, how it is asked, and whether an answer is that.
_QUESTIONS: tuple[tuple[str, str, _Ask, Callable[[Any], bool]], ...] = (
    ("page_arrays()", "a tuple of PageArray", lambda s, _: s.page_arrays(), _are_arrays),
    ("max_blocks(...)", _COUNT, lambda s, limits: s.max_blocks(limits), _is_count),
    ("peak_blocks(...)", _COUNT, lambda s, limits: s.peak_blocks(limits), _is_count),
    ("steady_blocks(1, ...)", _COUNT, lambda s, limits: s.steady_blocks(1, limits), _is_count),
    ("steady_cost(...)", "(blocks, blocks a token)", lambda s, x: s.steady_cost(x), _is_cost),
    ("tokens_per_block(...)", "tokens", lambda s, x: s.tokens_per_block(x), _is_count),
    ("hit_length([True])", "tokens", lambda s, _: s.hit_length([True]), _is_count),
    (
        "written(0, 1, ...)",
        "a range of positions",
        lambda s, limits: s.written(0, 1, limits),
        lambda answer: type(answer) is range and answer.step == 1,
    ),
    (
        "resident(0, 1, ...)",
        RUNS,
        lambda s, limits: s.resident(0, 1, limits),
        lambda answer: not first_run_problem(answer),
    ),
)
