"""How pictures are drawn, by hand: what each begins with; of memory text and bars, downwards.

In one bar all areas are proportional to bytes: each rectangle carries `data-bytes`, each bar
`data-total-bytes`, and they add up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from kvpipe.report.map_style import HATCHED, LIGHT_TEXT, STYLE
from kvpipe.text.figures import size
from kvpipe.text.markup import shown

WIDTH, MARGIN, BAR_HEIGHT, ROW_HEIGHT = 960, 32, 46, 26
BAR_WIDTH = WIDTH - 2 * MARGIN
LETTER = 6.6  # width of a 12 px letter, generously

Segment = tuple[str, int, str]  # class, bytes, what it is


def svg(width: int, height: float, title: str, elements: Iterable[str], *, own: str = "") -> str:
    """A whole picture on paper, in the colours of the memory map. own: attributes of its size,
    where it has one of its own."""
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}"{own} '
        'role="img">',
        f"<title>{shown(title)}</title>",
        STYLE,
        f'<rect class="paper" width="{width}" height="{height:.0f}"/>',
        *elements,
        "</svg>",
    )
    return "\n".join(lines) + "\n"


class Drawing:
    """Elements from top to bottom; y is where the next one goes, in pixels."""

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.y = 0.0

    def text(self, words: str, kind: str = "label", x: float = MARGIN, dy: float = 18) -> None:
        self.y += dy
        place = f'class="{kind}" x="{x:.1f}" y="{self.y:.1f}"'
        self.elements.append(f"<text {place}>{shown(words)}</text>")

    def bar(self, name: str, segments: Sequence[Segment], height: float) -> dict[str, float]:
        """One bar over the whole width. Returns the left edge of each segment, and "end"."""
        elements, edges = _bar(name, tuple(segments), self.y, height)
        self.elements += elements
        self.y += height
        return dict(edges)

    def svg(self, title: str) -> str:
        height = self.y + MARGIN
        own = f' width="{WIDTH}" height="{height:.0f}"'
        return svg(WIDTH, height, title, self.elements, own=own)


@lru_cache(maxsize=64)  # jobs of a sweep have most of their bars in common
def _bar(
    name: str, segments: tuple[Segment, ...], y: float, height: float
) -> tuple[tuple[str, ...], Mapping[str, float]]:
    """The elements of a bar whose top is at y, and the edges."""
    total = sum(num_bytes for _, num_bytes, _ in segments)
    about = f'data-name="{shown(name)}" data-total-bytes="{total}"'
    elements = [f'<g class="bar" {about}>']
    x, edges = float(MARGIN), dict[str, float]()
    for kind, num_bytes, words in segments:
        if num_bytes:
            edges.setdefault(kind, x)
            width = BAR_WIDTH * num_bytes / total
            elements += _segment(kind, num_bytes, words, (x, y), width, height)
            x += width
    return (*elements, "</g>"), {**edges, "end": x}


def _segment(
    kind: str, num_bytes: int, words: str, at: tuple[float, float], width: float, height: float
) -> Iterator[str]:
    x, top = at
    # A hairline between neighbours, but none where it would hide what it separates.
    edge = ' stroke-width="1"' if width > 4 else ' stroke-width="0"'
    yield (
        f'<rect class="{kind} edge" x="{x:.4f}" y="{top:.1f}" width="{width:.6f}" '
        f'height="{height}" data-bytes="{num_bytes}"{edge}>'
        f"<title>{shown(words)}: {size(num_bytes)} ({num_bytes:,} bytes)</title></rect>"
    )
    shade = "label halo" if kind in HATCHED else "on-dark" if kind in LIGHT_TEXT else "on-light"
    lines = _fitting_label(kind, words, num_bytes, width, height)
    for number, line in enumerate(lines):
        y = top + height / 2 + 4.5 + 15 * (number - (len(lines) - 1) / 2)
        yield f'<text class="{shade}" x="{x + 6:.1f}" y="{y:.1f}">{shown(line)}</text>'


def _fitting_label(
    kind: str, words: str, num_bytes: int, width: float, height: float
) -> Sequence[str]:
    """The most telling label that has room: what and how much, one of them, a layer's number."""
    number = re.findall(r"\d+", words)[:1] if kind == "layer" else []
    tall = [[words, size(num_bytes)]] if height >= BAR_HEIGHT else []
    for lines in (*tall, [words], number or [size(num_bytes)]):
        if width >= LETTER * max(map(len, lines)) + 10:
            return lines
    return []
