"""The sliders: settings and the stops of each. Between two stops of a slider there is nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from kvpipe.pipeline import Prepared

Stop = int | str

LENGTH, BATCH = "scheduler.max_model_len", "scheduler.max_num_batched_tokens"
CACHE, CARDS = "cache.cache_dtype", "parallel.tensor_parallel_size"
USUAL_BATCHES, USUAL_CARDS, USUAL_CACHES = (2048, 8192, 32768), (1, 2, 4, 8), ("auto", "fp8")
SHORTEST = 1024


@dataclass(frozen=True, kw_only=True)
class Axis:
    """key: the setting. title: what people call it. stops: its values, in order. start: the index
    of the stop that was asked for."""

    key: str
    title: str
    stops: tuple[Stop, ...]
    start: int


@dataclass(frozen=True, kw_only=True)
class AskedStops:
    """What the user set of each slider; None: the usual stops."""

    lengths: Sequence[int] | None = None
    batches: Sequence[int] | None = None
    caches: Sequence[str] | None = None
    cards: Sequence[int] | None = None


def axes_of(
    prepared: Prepared, asked: AskedStops, most: int, *, dense: bool, keep_auto: bool = False
) -> tuple[Axis, ...]:
    """Cards, cache, batch, length (the last moves fastest), with at most `most` combinations where
    nothing is set. dense: all usual stops; else those of the request itself, and lengths.
    keep_auto: a batch budget that nobody set is each engine's own."""
    resolved = prepared.resolved
    on_card = dense and resolved.device.type != "cpu"
    limits, cache = resolved.limits, prepared.config.cache.cache_dtype
    batch: Stop = limits.max_num_batched_tokens
    if keep_auto and prepared.config.scheduler.max_num_batched_tokens == "auto":
        batch = "auto"
    others = (
        _axis(CARDS, "cards", asked.cards, USUAL_CARDS if on_card else (), resolved.parallel.tp),
        _axis(CACHE, "cache type", asked.caches, USUAL_CACHES if dense else (), cache),
        _axis(
            BATCH,
            "batch budget",
            asked.batches,
            USUAL_BATCHES if dense and not keep_auto else (),
            batch,
        ),
    )
    room = max(2, most // prod(len(axis.stops) for axis in others))
    context = resolved.model.context_length
    usual = usual_lengths(context, room)
    return (*others, _axis(LENGTH, "length", asked.lengths, usual, limits.max_model_len))


def usual_lengths(context: int, most: int) -> tuple[int, ...]:
    """The context and powers of two below it, with stops between them where there is room."""
    for parts in (8, 4, 2, 1):
        steps = sorted(
            {
                length * (parts + i) // parts
                for length in _doubled(min(SHORTEST, context))
                if length <= context
                for i in range(parts)
            }
        )
        stops = [length for length in steps if length < context]
        if len(stops) + 2 <= most:
            return (*stops, context)
    every = -(-len(stops) // max(1, most - 2))
    return (*stops[::-every][::-1], context)


def _doubled(first: int) -> Iterable[int]:
    return (first << i for i in range(32))


def _axis(
    key: str, title: str, asked: Sequence[Stop] | None, usual: Sequence[Stop], own: Stop
) -> Axis:
    """With the request's own value among the stops: numbers in order, words with it in front."""
    values = dict.fromkeys([own, *(usual if asked is None else asked)])
    numbers = sorted(value for value in values if isinstance(value, int))
    words = [value for value in values if isinstance(value, str)]
    stops: tuple[Stop, ...] = (*numbers, *words)
    return Axis(key=key, title=title, stops=stops, start=stops.index(own))
