"""Fleets as points, what they cost against how long one waits, as SVG; the front is joined.

A point is on the front if no other is at least as cheap and as quick, and one of both more so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvpipe.report.drawing import svg
from kvpipe.text.markup import shown
from kvpipe.text.ticks import ticks

WIDTH, HEIGHT = 860, 450
LEFT, RIGHT, TOP, BOTTOM = 80, 200, 84, 56


@dataclass(frozen=True, kw_only=True)
class Point:
    """name: what is written beside it. cost: to the right; delay: upwards. Less is better."""

    name: str
    cost: float
    delay: float


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats, the cheapest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, p.delay)):
        if not kept or point.delay < kept[-1].delay:
            kept.append(point)
    return kept


def pareto(points: Sequence[Point], *, title: str, model: str, cost: str, delay: str) -> str:
    """cost, delay: what the axes count, with their units. points: at least one."""
    best = front(points)
    right = 1.1 * max(point.cost for point in points)
    top = 1.1 * max(point.delay for point in points) or 1.0
    axes = _Axes(right=right, top=top)
    lines = [
        f'<text class="section" x="{LEFT}" y="24">{shown(title)}</text>',
        f'<text class="label" x="{LEFT}" y="42">{shown(model)}</text>',
        f'<text class="faint" x="{LEFT}" y="60">{shown(delay)}, upwards; joined: nothing else is '
        "both cheaper and quicker</text>",
        *axes.drawn(cost),
        *_joined(best, axes),
        *_dots(points, best, axes),
    ]
    return svg(WIDTH, HEIGHT, title, lines)


@dataclass(frozen=True, kw_only=True)
class _Axes:
    right: float
    top: float

    def at(self, cost: float, delay: float) -> tuple[float, float]:
        x = LEFT + cost / self.right * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - delay / self.top * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    def drawn(self, cost: str) -> Iterator[str]:
        base, end = HEIGHT - BOTTOM, WIDTH - RIGHT
        for value in ticks(self.top):
            y = self.at(0, value)[1]
            yield f'<path d="M{LEFT} {y}H{end}" stroke="#8884"/>'
            yield (
                f'<text class="faint" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:,.10g}'
                "</text>"
            )
        for value in ticks(self.right):
            x = self.at(value, 0)[0]
            yield f'<path d="M{x} {base}v4" stroke="#888"/>'
            yield (
                f'<text class="faint" x="{x}" y="{base + 18}" text-anchor="middle">{value:,.10g}'
                "</text>"
            )
        yield f'<path d="M{LEFT} {base}H{end}" stroke="#888"/>'
        place = f'x="{end}" y="{base + 38}" text-anchor="end"'
        yield f'<text class="label" {place}>{shown(cost)}</text>'


def _joined(best: Sequence[Point], axes: _Axes) -> Iterator[str]:
    """Stairs: between two points of the front nothing is known to be better than the corner."""
    if len(best) < 2:
        return
    x, y = axes.at(best[0].cost, best[0].delay)
    path = f"M{x} {y}"
    for point in best[1:]:
        x, y = axes.at(point.cost, point.delay)
        path += f"H{x}V{y}"
    yield f'<path d="{path}" fill="none" stroke="#2563b8" stroke-width="1.5"/>'


def _dots(points: Sequence[Point], best: Sequence[Point], axes: _Axes) -> Iterator[str]:
    """Each has its name as a tooltip. Below those of the front, where nothing is, it is written."""
    for point in (*(point for point in points if point not in best), *best):
        x, y = axes.at(point.cost, point.delay)
        colour, radius = ("payload", 5.0) if point in best else ("other", 3.5)
        yield (
            f'<circle class="{colour} edge" cx="{x}" cy="{y}" r="{radius}">'
            f"<title>{shown(point.name)}: {point.cost:,.10g}, {point.delay:,.4g}</title></circle>"
        )
    free, above = 0.0, -math.inf  # the right end of the label before, and its height
    for point in best:
        x, y = axes.at(point.cost, point.delay)
        if x >= free or y - above >= 14:
            above, free = y, x + 8 * len(point.name)
            yield f'<text class="label halo" x="{x + 6}" y="{y + 17}">{shown(point.name)}</text>'
