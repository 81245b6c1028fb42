"""A subject of a page: a request, one job of a sweep, or one engine, planned at every stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kvpipe.page.axes import Axis, Stop
from kvpipe.page.planner import Planner
from kvpipe.page.position import Position
from kvpipe.pipeline import Prepared
from kvpipe.report.identity import model_words


@dataclass(frozen=True, kw_only=True)
class Subject:
    """title: what tells it from others. words: the overrides that it came from, without those that
    sliders set. model, device: in words. positions: one a combination of the axes' stops, the last
    axis moving fastest."""

    title: str
    words: tuple[str, ...]
    model: str
    device: str
    axes: tuple[Axis, ...]
    positions: tuple[Position, ...]


def planned(
    prepared: Prepared,
    axes: Sequence[Axis],
    title: str,
    words: Sequence[str],
    raw: Mapping[str, Any],
) -> Subject:
    """Every stop, planned. raw: the composed values that the stops change."""
    planner = Planner(raw=raw)
    return Subject(
        title=title,
        words=tuple(words_without(words, axes)),
        model=model_words(prepared.resolved),
        device=prepared.resolved.device.name,
        axes=tuple(axes),
        positions=tuple(planner.position(changes) for changes in combinations(axes)),
    )


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
