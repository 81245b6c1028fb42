"""Blocks in use over time as a small SVG, drawn by hand: no plotting library."""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.simulation.result import ReplayResult
from kvpipe.text.figures import count

WIDTH, HEIGHT = 860, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 44, 44
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .axis, .grid { stroke: #999; stroke-width: 1 } .grid { stroke: #e4e4e4 }
  .use { fill: #2b6cb0; fill-opacity: .75 } .cached { fill: #a0c4e8; fill-opacity: .75 }
"""


def render_svg(result: ReplayResult) -> str:
    """Two stacked areas, blocks in use and free blocks that still hold a prefix, up to the pool."""
    end = max((point.time_s for point in result.points), default=0.0) or 1.0
    top = max(1, result.usable_blocks)

    def at(seconds: float, blocks: float) -> tuple[float, float]:
        x = LEFT + seconds / end * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - min(1.0, blocks / top) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    used = [at(p.time_s, p.in_use) for p in result.points]
    held = [at(p.time_s, p.in_use + p.cached_free) for p in result.points]
    floor = [at(0, 0)[1], at(end, 0)[1]]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>Blocks in use while replaying {result.trace}</title><style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_grid(top, at(0, 0)[0], at(end, 0)[0], lambda blocks: at(0, blocks)[1]),
        _area("cached", held, floor[0]),
        _area("use", used, floor[0]),
        *_axes(end),
        *_legend(result),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _area(name: str, corners: list[tuple[float, float]], floor: float) -> str:
    if not corners:
        return ""
    path = [(corners[0][0], floor), *corners, (corners[-1][0], floor)]
    points = " ".join(f"{x},{y}" for x, y in path)
    return f'<polygon class="{name}" points="{points}"/>'


def _grid(top: int, left: float, right: float, height_of: object) -> Iterable[str]:
    assert callable(height_of)
    for quarter in range(5):
        blocks = top * quarter // 4
        y = height_of(blocks)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{blocks:,}</text>'


def _axes(end: float) -> Iterable[str]:
    base = HEIGHT - BOTTOM
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>'
    for quarter in range(5):
        x = LEFT + quarter / 4 * (WIDTH - LEFT - RIGHT)
        label = f"{end * quarter / 4:,.0f} s" if end >= 8 else f"{end * quarter / 4:.1f} s"
        yield f'<text x="{x:.0f}" y="{base + 18}" text-anchor="middle">{label}</text>'


def _legend(result: ReplayResult) -> Iterable[str]:
    title = (
        f"{result.trace}: at most {count(result.max_running, 'request')} together, "
        f"{result.peak_in_use:,} of {count(result.usable_blocks, 'block')}"
    )
    yield f'<text x="{LEFT}" y="18" font-weight="bold">{title}</text>'
    yield f'<rect class="use" x="{LEFT}" y="26" width="10" height="10"/>'
    yield f'<text x="{LEFT + 15}" y="35">in use</text>'
    yield f'<rect class="cached" x="{LEFT + 75}" y="26" width="10" height="10"/>'
    yield f'<text x="{LEFT + 90}" y="35">free, prefix still cached</text>'
