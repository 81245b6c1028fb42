"""A trace's request on its way through the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvpipe.simulation.traces.base import TraceRequest

# Ids of made-up tokens. Below 2**31: a prompt's, each a third of the 63 bits of its block's prefix
# id in turn, so that different ids differ within three tokens. From there on: one request's alone.
_OWN_TOKENS = 2**31


class Clock(Protocol):
    """steps: how many were done."""

    steps: int


@dataclass(eq=False, slots=True)
class Traffic:
    """number: place in the trace. target: tokens stored when it is finished (the last output token
    is not). done: tokens known so far, prompt and output; stored: tokens in the cache. serial:
    place in the order of admission."""

    number: int
    request: TraceRequest
    target: int
    _done: int
    _stored: int = 0
    _clock: Clock | None = None  # of the batch that stores a token of it in every step
    serial: int = 0
    preempted: int = 0
    admitted_s: float | None = None  # first admission, and the end of the first token's step
    first_token_s: float | None = None
    own: int = field(init=False)  # the id of its own tokens

    def __post_init__(self) -> None:
        self.own = own_token(self.number)

    def stand(self, clock: Clock | None) -> None:
        """From now on it stores a token whenever the clock's steps go on (None: no longer)."""
        now = self.stored
        self._done = self._stored = now - (clock.steps if clock else 0)
        self._clock = clock

    @property
    def stands(self) -> bool:
        return self._clock is not None

    @property
    def stored(self) -> int:
        return self._stored if self._clock is None else self._stored + self._clock.steps

    @stored.setter
    def stored(self, tokens: int) -> None:
        assert self._clock is None, "its batch counts"
        self._stored = tokens

    @property
    def done(self) -> int:
        return self._done if self._clock is None else self._done + self._clock.steps

    @done.setter
    def done(self, tokens: int) -> None:
        self._done = tokens

    def tokens(self) -> npt.NDArray[np.int64]:
        """[done] ids that agree with another request's exactly as far as their prefix ids do."""
        request, prompt = self.request, self.request.prompt_tokens
        own = self.own
        if not request.prefix_ids:
            return np.full(self.done, own, np.int64)
        ids = np.repeat(np.array(request.prefix_ids, np.int64), request.prefix_block)[:prompt]
        third = np.arange(len(ids)) % request.prefix_block % 3
        named = (ids >> (31 * third)) % _OWN_TOKENS
        return np.concatenate((named, np.full(self.done - len(named), own, np.int64)))


def own_token(number: int) -> int:
    """The id of every token that belongs to request `number` alone."""
    return _OWN_TOKENS + number % _OWN_TOKENS
