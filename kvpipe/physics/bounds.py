"""A bound on the time of a step: no faster than what must be read over the bandwidth, and no faster
than what must be computed over the peak. Both are nominal figures of the card; nothing here is an
estimate of how fast an engine is.

Read: the weights of a step once, and of each decoding request what its layers see. Computed: two
operations a weight and token. Not counted, so that the bound holds: attention's own operations,
activations, communication, the embedding table (rows are looked up), experts beyond those of one
token.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.models.base import ModelGeometry
from kvpipe.physics.lengths import Lengths, ListedLengths
from kvpipe.physics.reads import CacheReads

# Of the experts of one token in every layer: layers without any, and experts of two matrices
# instead of three, are not told apart here.
SURE_OF_EXPERTS = 0.5


@dataclass(frozen=True, kw_only=True)
class StepBound:
    """Of one rank. weight_bytes: read in every step. weights: numbers that a token is multiplied
    with. bandwidth: bytes a second; peak: operations a second (None: not known, not counted).
    efficiency: share of both that is reached (1: the bound itself)."""

    weight_bytes: float
    weights: float
    reads: CacheReads
    bandwidth: float
    peak: float | None = None
    efficiency: float = 1.0

    def seconds(self, decoding: Lengths, new_tokens: int) -> float:
        """Of a step that computes new_tokens, those of the decoding requests among them."""
        read = (self.weight_bytes + self.reads.of(decoding)) / self.bandwidth
        if self.peak is None:
            return read / self.efficiency
        computed = 2 * self.weights * new_tokens / self.peak
        return max(read, computed) / self.efficiency

    def token_seconds(self, users: int, length: int) -> float:
        """Between two tokens of each, with that many decoding at that length."""
        return self.seconds(ListedLengths([length] * users), users)

    def first_token_seconds(self, prompt: int, chunk: int) -> float:
        """Of a prompt alone, in steps of at most chunk tokens."""
        whole, rest = divmod(prompt, chunk)
        total = whole * self.seconds(ListedLengths(), chunk)
        return total + (self.seconds(ListedLengths(), rest) if rest else 0.0)


def read_share(model: ModelGeometry) -> float:
    """At least this share of a model's weights is read in every step, and used by every token:
    towers are not, nor are embeddings."""
    total = model.parameter_count
    if not total:
        return 0.0
    if model.experts_per_token and model.expert_size:
        experts = model.num_layers * 3 * model.hidden_size
        used = experts * model.experts_per_token * model.expert_size
        return min(1.0, SURE_OF_EXPERTS * used / total)
    unread = model.vocab_size * model.hidden_size + model.tower_parameters
    return max(0.0, 1 - unread / total)
