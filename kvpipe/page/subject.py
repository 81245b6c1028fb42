"""A subject of a page: a request, one job of a sweep, or one engine, planned at every stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kvpipe.page.axes import Axis, Stop
from kvpipe.page.between import Counted, Lengths, Piece, pieces_of
from kvpipe.page.counts import counts_of
from kvpipe.page.planner import Planner
from kvpipe.page.position import Position
from kvpipe.pipeline import Prepared
from kvpipe.report.identity import model_words


@dataclass(frozen=True, kw_only=True)
class Subject:
    """title: what tells it from others. words: the overrides that it came from, without those that
    sliders set. model, device: in words. positions: one a combination of the axes' stops, the last
    axis moving fastest. between: what is known of lengths between the stops, one list a
    combination of the other axes. pipeline, copies: stages, and copies of the attention; each stop
    of the cards' slider is as many ranks (tensor parallel) of each."""

    title: str
    words: tuple[str, ...]
    model: str
    device: str
    axes: tuple[Axis, ...]
    positions: tuple[Position, ...]
    between: tuple[tuple[Piece, ...], ...] = ()
    pipeline: int = 1
    copies: int = 1


def planned(
    prepared: Prepared,
    axes: Sequence[Axis],
    title: str,
    words: Sequence[str],
    raw: Mapping[str, Any],
) -> Subject:
    """Every stop, planned. raw: the composed values that the stops change."""
    planner = Planner(raw=raw)
    cells = [_cell(planner, others, axes[-1]) for others in combinations(axes[:-1])]
    return Subject(
        title=title,
        words=tuple(words_without(words, axes)),
        model=model_words(prepared.resolved),
        device=prepared.resolved.device.name,
        axes=tuple(axes),
        positions=tuple(position for positions, _ in cells for position in positions),
        between=tuple(pieces for _, pieces in cells),
        pipeline=prepared.resolved.parallel.pp,
        copies=prepared.resolved.parallel.dp,
    )


def _cell(
    planner: Planner, others: Mapping[str, Stop], axis: Axis
) -> tuple[list[Position], tuple[Piece, ...]]:
    """Every stop of the lengths beside one combination of the others, and what lies between."""
    stops = {stop: planner.planned({**others, axis.key: stop}) for stop in axis.stops}

    def counted(length: int) -> Counted:
        position, made = stops.get(length) or planner.planned({**others, axis.key: length})
        counts = made and counts_of(made.made, made.profile, made.plan, position)
        return (counts, made.plan) if made and counts else None

    lengths = [stop for stop in axis.stops if isinstance(stop, int)]
    pieces = tuple(pieces_of(Lengths(plan=counted), lengths))
    return [position for position, _ in stops.values()], pieces


def combinations(axes: Sequence[Axis]) -> Iterator[dict[str, Stop]]:
    """The changes of every combination, in the order of `Subject.positions`."""
    for stops in product(*(axis.stops for axis in axes)):
        yield {axis.key: stop for axis, stop in zip(axes, stops, strict=True)}


def words_without(words: Sequence[str], axes: Sequence[Axis]) -> Iterator[str]:
    """Overrides that the page does not say itself: no slider's, no command, no place for files."""
    said = {axis.key for axis in axes} | {"want.requests", "command", "report"}
    for word in words:
        key = word.partition("=")[0]
        if key not in said and not key.startswith(("command.", "hydra.", "report.")):
            yield word
