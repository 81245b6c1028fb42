"""Runs: block indices as ranges of step 1, ascending, none empty, a hole between any two.

Equal sets of indices are equal runs, so that "nothing changed" is one comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Runs: TypeAlias = tuple[range, ...]


def one_run(start: int, stop: int) -> Runs:
    return (range(start, stop),) if start < stop else ()


def joined(*ranges: range) -> Runs:
    """The indices of ranges given in ascending order of their start, as runs.

    >>> joined(range(2), range(1, 3), range(5, 5), range(7, 9))
    (range(0, 3), range(7, 9))
    """
    runs: list[range] = []
    for one in ranges:
        if runs and one.start <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, max(runs[-1].stop, one.stop))
        elif one:
            runs.append(one)
    return tuple(runs)


def num_indices(runs: Runs) -> int:
    return sum(map(len, runs))


def indices(runs: Runs) -> Sequence[int]:
    """All indices in order: the range itself where there is but one."""
    return runs[0] if len(runs) == 1 else [i for run in runs for i in run]


def has(runs: Runs, index: int) -> bool:
    if len(runs) == 1:  # nearly always, and asked for each index of a step
        return index in runs[0]
    return any(index in run for run in runs)


def below(runs: Runs, stop: int) -> Runs:
    """The indices less than `stop`."""
    if not runs or runs[-1].stop <= stop:
        return runs
    return tuple(range(run.start, min(run.stop, stop)) for run in runs if run.start < stop)


def first_run_problem(runs: object) -> str:
    """What is wrong with an answer that should be runs, in words; "" if nothing is."""
    if type(runs) is not tuple:
        return f"{type(runs).__name__} {runs!r}"
    stop = -1
    for run in runs:
        if type(run) is not range or run.step != 1:
            return f"{run!r} in {runs!r}"
        if not stop < run.start < run.stop:
            return f"{runs!r}"
        stop = run.stop
    return ""
