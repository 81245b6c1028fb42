"""How long a simulated step takes: counted, never measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvpipe.physics.lengths import Lengths

NOMINAL_SECONDS, NOMINAL_TOKENS_PER_SECOND = 0.02, 20000.0


class StepTime(Protocol):
    def seconds(self, decoding: Lengths, new_tokens: int) -> float:
        """Of a step that computes new_tokens, those of the decoding requests among them. decoding:
        tokens that each of these has stored."""
        ...


@dataclass(frozen=True, kw_only=True)
class NominalStep:
    """The same for every model and card."""

    each: float = NOMINAL_SECONDS
    tokens_per_second: float = NOMINAL_TOKENS_PER_SECOND

    def seconds(self, decoding: Lengths, new_tokens: int) -> float:
        return self.each + new_tokens / self.tokens_per_second
