"""What decode steps need, worked out once for every request that passes the same length.

While a request only decodes, what it holds depends on its length alone. So the spec is asked once a
length at which something changes, and whole batches are served by array look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvpipe.specs.answers import held_at
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.runs import Runs, has, num_indices

# Columns of what `DecodePlan.at` returns, in tokens or table indices; -1 where there is none.
TAKE = 0  # the one index that this step must get a block for
DROP = 1  # the one index whose block it no longer needs
SIMPLE = 2  # 1 if that is all that changes since the step before
UNTIL = 3  # later steps need nothing new until so many tokens are stored
POSITION = 4  # which position this step fills; each later one fills ADVANCE further
ADVANCE = 5
_COLUMNS = 6
_MOST = 1 << 16  # lengths remembered; then all are forgotten


class DecodeStep(NamedTuple):
    """The columns above of one length, and the indices held."""

    take: int
    drop: int
    simple: int
    until: int
    position: int
    advance: int
    want: Runs


class DecodePlan:
    """Of one group, for requests of equal limits. span: tokens that an index stands for. ranks:
    context parallel ranks that share a span (with several, every step is looked at anew)."""

    def __init__(self, spec: KVCacheSpec, limits: RequestLimits, span: int, ranks: int) -> None:
        self.spec, self.limits, self.span, self.ranks = spec, limits, span, ranks
        self._entry_of: dict[int, int] = {}
        self._steps: list[DecodeStep] = []
        self._entries = np.empty((64, _COLUMNS), np.int64)  # the steps' columns ...
        self._written = 0  # ... of so many steps: one request alone needs none

    def at(self, computed: Sequence[int]) -> tuple[npt.NDArray[np.int64], list[Runs]]:
        """[n, 6] and n: the columns above, and the indices held, of a one-token step of requests
        with those numbers of tokens stored (at least one each)."""
        self._forget_if_full()
        known = self._entry_of
        entries = [known[c] if c in known else self._learn(c) for c in computed]
        if self._written < len(self._steps):
            self._write_entries()
        return self._entries[entries], [self._steps[entry].want for entry in entries]

    def step(self, computed: int) -> DecodeStep:
        """The same of one request."""
        entry = self._entry_of.get(computed)
        if entry is None:
            self._forget_if_full()
            entry = self._learn(computed)
        return self._steps[entry]

    def _forget_if_full(self) -> None:
        if len(self._entry_of) > _MOST:
            self._entry_of.clear()
            self._steps.clear()
            self._written = 0

    def _write_entries(self) -> None:
        """The columns of the steps that were learnt since."""
        first, stop = self._written, len(self._steps)
        if stop > len(self._entries):
            self._entries = np.concatenate((self._entries, np.empty((stop, _COLUMNS), np.int64)))
        self._entries[first:stop] = [step[:_COLUMNS] for step in self._steps[first:]]
        self._written = stop

    def _learn(self, computed: int) -> int:
        entry = len(self._steps)
        want = held_at(self.spec, computed, 1, self.limits)
        if entry and self._steps[-1].until == computed:
            before = self._steps[-1].want
        else:
            before = held_at(self.spec, computed - 1, 1, self.limits)
        until = self._until(computed, want)
        changes = _changes(before, want)
        self._steps.append(DecodeStep(*changes, until, *self._positions(computed), want))
        self._entry_of[computed] = entry
        return entry

    def _until(self, computed: int, want: Runs) -> int:
        """What is held never goes back as tokens are added: where it changes is found by halving,
        up to the end of the block."""
        if self.ranks > 1:
            return computed + 1
        same, changed = computed, (computed // self.span + 1) * self.span
        if self.spec.resident(changed - 1, 1, self.limits) == want:
            return changed
        while changed - same > 1:
            middle = (same + changed) // 2
            if self.spec.resident(middle, 1, self.limits) == want:
                same = middle
            else:
                changed = middle
        return changed

    def _positions(self, computed: int) -> tuple[int, int]:
        now = self.spec.written(computed, 1, self.limits)
        later = self.spec.written(computed + 1, 1, self.limits)
        return (now.start, int(later.start == now.start + 1)) if now else (-1, 0)


def _changes(before: Runs, want: Runs) -> tuple[int, int, int]:
    """(TAKE, DROP, SIMPLE) from one step to the next."""
    if len(before) == 1 == len(want):
        old, new = before[0], want[0]
        more, less = new.stop - old.stop, new.start - old.start
        if 0 <= more <= 1 and 0 <= less <= 1:  # one run that moves on, as nearly all do
            return (new.stop - 1 if more else -1), (old.start if less else -1), 1
    take = [i for i in _ends(want) if not has(before, i)]
    drop = [i for i in _ends(before) if not has(want, i)]
    # The one index that is new must be the last, which alone is without content.
    simple = (
        len(take) <= 1
        and len(drop) <= 1
        and (not take or take[0] == want[-1][-1])
        and num_indices(want) - num_indices(before) == len(take) - len(drop)
    )
    return (take or [-1])[0], (drop or [-1])[0], int(simple)


def _ends(runs: Runs) -> list[int]:
    """The first two and last two indices of each run: enough to see whether it changed by one."""
    ends: list[int] = []
    for run in runs:
        ends += run if len(run) < 5 else (run[0], run[1], run[-2], run[-1])
    return ends
