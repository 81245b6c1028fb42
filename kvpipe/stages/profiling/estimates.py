"""What a model needs beside its weights, without the device: formulas with bounds.

Symbols: T tokens of one step, S requests of one step, V vocabulary, H hidden size, I intermediate
size, k experts a token, E intermediate size of one expert, a bytes of an activation, tp ranks.

Public logs print too few of these figures to fit anything, so each is a formula whose bounds are
stated; docs/accuracy.md says how many printed figures lie inside.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.models.base import ModelGeometry
from kvpipe.text.figures import GIB, MIB

WIDEST = 3  # no range is wider than this factor, unless its formula says why it must be
ACTIVATION_BYTES = 2
LARGE_DEVICE = 60 * GIB  # bytes: cards with large workspaces and many links


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes: at least low, probably best, at most high; the formula and what its bounds rest on.

    widest: high over low, at most. What depends on kernels, drivers and neighbours spreads further
    than arrays that can be counted."""

    name: str
    low: int
    best: int
    high: int
    formula: str
    source: str
    widest: float = WIDEST

    def __post_init__(self) -> None:
        assert self.low <= self.best <= self.high <= self.widest * max(1, self.low), self


def activations(
    model: ModelGeometry,
    *,
    batched_tokens: int,
    max_num_seqs: int,
    tp: int = 1,
    has_head: bool = True,
    is_packed: bool = False,
) -> Estimate:
    """The peak of a profiled step: its widest layer, or the sampler, which runs after it.

    has_head: the rank samples (the last pipeline stage). is_packed: weights of few bits, which some
    kernels unpack a layer at a time.
    """
    step = batched_tokens * _widest_layer(model, tp) * ACTIVATION_BYTES
    sampler = min(max_num_seqs, batched_tokens) * model.vocab_size if has_head else 0
    bounds = [max(int(step * s), sampler * c) for s, c in zip(_STEP, _SAMPLER, strict=True)]
    unpacked = _layer_weights(model, tp) * ACTIVATION_BYTES if is_packed else 0
    larger = "the sampler" if sampler * _SAMPLER[1] > step else "the widest layer"
    return Estimate(
        name="activations",
        low=bounds[0],
        best=bounds[1],
        high=bounds[2] + unpacked,
        widest=WIDEST if not unpacked else (bounds[2] + unpacked) / max(1, bounds[0]) + 1,
        formula=f"max(T {batched_tokens:,} x widest layer, S {max_num_seqs:,} x V "
        f"{model.vocab_size:,} x {_SAMPLER[1]} B): {larger}",
        source="arrays of a layer that live at once; the sampler's copies of its logits (logs L15, "
        "L16, X02, X08)",
    )


_STEP = (0.75, 1.0, 1.8)  # of the arrays counted below; fused kernels need less, workspaces more
# Bytes a logit: 16 and 32 bit logits, sorted values with 8 byte indices, softmax, cumulative sum,
# masks. Three logs print peaks that stand for 38 to 42.
_SAMPLER = (24, 40, 50)


def _widest_layer(model: ModelGeometry, tp: int) -> int:
    """Numbers a token: the residual stream twice, and the larger of an MLP (gate, up, product; for
    experts k times that, and their outputs before they are summed) and of Q, K, V and output."""
    mlp = 3 * model.intermediate_size // tp
    experts = model.experts_per_token * (3 * model.expert_size // tp + model.hidden_size)
    if model.experts_per_token:
        mlp = experts
    return 2 * model.hidden_size + max(mlp, 4 * model.hidden_size // tp)


def _layer_weights(model: ModelGeometry, tp: int) -> int:
    """Numbers of one MLP (of the experts of one token): what a kernel unpacks at a time."""
    if model.experts_per_token:
        return 3 * model.hidden_size * model.expert_size * model.experts_per_token // tp
    return 3 * model.hidden_size * model.intermediate_size // tp


def capture_sizes(max_num_seqs: int) -> int:
    """Batch sizes that CUDA graphs are captured for: 1, 2, 4, every 8 below 256, every 16 up to
    twice the requests of a step, at most 512."""
    largest = min(2 * max_num_seqs, 512)
    return sum(
        size <= largest for size in (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    )


def graphs(model: ModelGeometry, *, num_layers: int, max_num_seqs: int) -> Estimate:
    """Kernel nodes and private pools of the captured graphs."""
    count = capture_sizes(max_num_seqs) * num_layers
    most = 2700 if model.experts_per_token else 600  # KiB
    return Estimate(
        name="graphs",
        low=count * 110 * 1024,
        best=count * 340 * 1024,
        high=count * most * 1024,
        widest=most / 110 + 0.01,
        formula=f"{capture_sizes(max_num_seqs)} batch sizes x {num_layers} layers x 340 KiB",
        source="logs L30, X10, X16, X19, X20, X25 and X27 print 115 to 490 KiB a layer and size; "
        "with experts X02 and L58 print 755 and 2,670",
    )


def context(tp: int, device_bytes: int = 0) -> Estimate:
    """What lies outside torch: libraries, the driver's context as far as it grows, and with several
    ranks the buffers of their communication. device_bytes: of one card."""
    several = tp > 1
    best = (256 + (128 if several else 0)) * MIB
    high = int(3.6 * GIB) if device_bytes >= LARGE_DEVICE else max(400 * MIB, best)
    return Estimate(
        name="context",
        low=80 * MIB,
        best=best,
        high=high,
        widest=50,
        formula="256 MiB" + (" + 128 MiB of communication buffers" if several else ""),
        source="non-torch memory of nine logs: 0.08 to 0.35 GiB on cards below 60 GiB, 0.26 to "
        "3.58 GiB above",
    )
