"""A prepared request -> the bound on its steps, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.answers.stage_weights import stage_weights
from kvpipe.errors import ConfigError
from kvpipe.physics.bounds import StepBound, read_share
from kvpipe.physics.peaks import peak_of
from kvpipe.physics.reads import cache_reads
from kvpipe.pipeline import Prepared
from kvpipe.specs.packed_types import WORDS


@dataclass(frozen=True, kw_only=True)
class Speed:
    """bound None: why there is none, in `why`. why: else what it rests on."""

    bound: StepBound | None
    why: str


def speed_of(prepared: Prepared, efficiency: float = 1.0) -> Speed:
    """A token passes every stage, so each stage's weights are read for it; what its request holds
    is read, and computed, at least on the slowest stage (micro-batches may overlap the others).
    Of experts that are spread over ranks one of these reads at least the mean, and all wait for
    it."""
    device, resolved = prepared.config.device, prepared.resolved
    if not device.bandwidth_bytes_per_s:
        why = f"no time is shown: device {resolved.device.name} names no bandwidth"
        return Speed(bound=None, why=f"{why} (device.bandwidth_bytes_per_s)")
    if resolved.cache_dtype in WORDS:
        why = f"no time is shown: what a step reads of a {resolved.cache_dtype} cache is not known"
        return Speed(bound=None, why=why)
    try:
        weights = stage_weights(prepared)
    except ConfigError as error:
        return Speed(bound=None, why=f"no time is shown: {error.problems[0]}")
    stage = max(weights, key=lambda each: weights[each].num_bytes)
    rank = next(rank for rank in resolved.ranks if rank.pp_rank == stage)
    share, model = read_share(resolved.model), resolved.model
    parallel = resolved.parallel
    # Of experts that copies share, a rank computes its own part: of one copy's tokens, at least
    # so many times less as there are copies (the others may have no tokens).
    sharing = parallel.dp if resolved.model.experts_per_token else 1
    alone = stage_weights(prepared, shared=False)
    whole = sum(item.num_bytes for item in alone.values()) * parallel.tp
    read = share * sum(item.num_bytes for item in weights.values())
    slowest = share * alone[stage].num_bytes
    numbers = (model.parameter_count or 0) * slowest / whole / sharing if whole else 0.0
    width = whole / model.parameter_count if model.parameter_count else 2.0
    peak = peak_of(resolved.device.name, width)
    return Speed(
        bound=StepBound(
            weight_bytes=read,
            weights=numbers,
            reads=cache_reads(rank.layers, resolved.limits),
            bandwidth=float(device.bandwidth_bytes_per_s),
            peak=peak,
            efficiency=efficiency,
        ),
        why=_rests_on(share, float(device.bandwidth_bytes_per_s), peak, efficiency),
    )


def _rests_on(share: float, bandwidth: float, peak: float | None, efficiency: float) -> str:
    text = f"{100 * share:.0f}% of the weights and what each request's layers see, read at "
    text += f"{bandwidth / 1e12:.2f} TB/s"
    if peak is not None:
        text += f"; two operations a weight at {peak / 1e12:,.0f} T/s"
    else:
        text += "; no peak of computing is known"
    label = "nominal figures, a bound: no faster than this"
    if efficiency < 1:
        label = f"nominal figures, of which {efficiency:.0%} are reached (set by you)"
    return f"{text} ({label})"
