"""Blocks in use over time as a small SVG, drawn by hand: no plotting library.

A step plot: a level holds until the next step; while the engine has nothing to do it is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvpipe.simulation.ledger import Point
from kvpipe.simulation.result import ReplayResult
from kvpipe.text.figures import count
from kvpipe.text.markup import shown
from kvpipe.text.ticks import round_step, ticks

WIDTH, HEIGHT = 860, 330
LEFT, RIGHT, TOP, BOTTOM = 80, 30, 62, 48
_TIME_UNITS = ((1, "s"), (60, "min"), (3600, "h"), (86400, "d"))
_STYLE = """
  svg { background: #fff } text { font: 12px system-ui, sans-serif; fill: #333 }
  .title { font-weight: bold } .axis { stroke: #777 } .grid { stroke: #e4e4e4 }
  .use { fill: #2b6cb0; stroke: #2b6cb0 } .cached { fill: #a0c4e8 }
  .dry { stroke: #b00020; stroke-dasharray: 4 3 } .word, .preempted { fill: #b00020 }
  @media (prefers-color-scheme: dark) {
    svg { background: #16181c } text { fill: #ddd } .grid { stroke: #333 } .axis { stroke: #999 }
    .use { fill: #5b9bd8; stroke: #5b9bd8 } .cached { fill: #2d4f70 }
    .dry { stroke: #ff6b7f } .word, .preempted { fill: #ff8a9a }
  }
"""
Level = tuple[float, int]  # from this second on, so many blocks


def render_svg(result: ReplayResult, heading: str = "") -> str:
    """Two areas, blocks in use and free blocks that still hold a prefix: up to the pool, or, where
    most of it is never touched, up to a little more than what was.

    heading: the model and the device.
    """
    end, top = _end(result) or 1.0, _top(result)

    def at(seconds: float, blocks: float) -> tuple[float, float]:
        x = LEFT + seconds / end * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - min(1.0, blocks / top) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    used = levels(result, lambda point: point.in_use, idle=lambda point: 0)
    held = levels(result, lambda p: p.in_use + p.cached_free, idle=lambda p: p.cached_free)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>Blocks in use while replaying {shown(result.trace)}</title>",
        f"<style>{_STYLE}</style>",
        *_blocks_axis(top, at),
        _area("cached", held, end, at),
        _area("use", used, end, at),
        *_time_axis(end, at),
        *_preempted(result, at),
        *_ran_dry(result, at),
        *_legend(result, heading),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def levels(
    result: ReplayResult, of: Callable[[Point], int], idle: Callable[[Point], int]
) -> list[Level]:
    """(second, blocks from then on), in order; in idle time what `idle` says of the step after."""
    found = [(point.time_s, of(point)) for point in result.points]
    after = 0
    for start, end in result.idle:
        while after + 1 < len(result.points) and result.points[after].time_s < end:
            after += 1
        found.append((start, idle(result.points[after])))
    return sorted(found)


def _top(result: ReplayResult) -> int:
    most = max((point.in_use + point.cached_free for point in result.points), default=0)
    pool = max(1, result.usable_blocks)
    return pool if 4 * most >= pool else max(1, most + most // 5)


def _end(result: ReplayResult) -> float:
    return max([result.simulated_s, *(point.time_s for point in result.points)])


def _area(name: str, steps: Sequence[Level], end: float, at: Callable[..., object]) -> str:
    if not steps:
        return ""
    corners: list[tuple[float, int]] = [(steps[0][0], 0)]
    for start, blocks in steps:
        corners += [(start, corners[-1][1]), (start, blocks)]
    corners += [(end, corners[-1][1]), (end, 0)]
    points = " ".join("{},{}".format(*at(*corner)) for corner in corners)  # type: ignore[misc]
    return f'<polygon class="{name}" points="{points}"/>'


def _blocks_axis(top: int, at: Callable[[float, float], tuple[float, float]]) -> Iterable[str]:
    step = max(1, round(round_step(top)))
    right = WIDTH - RIGHT
    for blocks in range(0, top + 1, step):
        y = at(0, blocks)[1]
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{blocks:,}</text>'
    yield f'<text x="{LEFT - 6}" y="{TOP - 10}" text-anchor="end">blocks</text>'


def _time_axis(end: float, at: Callable[[float, float], tuple[float, float]]) -> Iterable[str]:
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    seconds, unit = [(size, name) for size, name in _TIME_UNITS if end >= 3 * size or size == 1][-1]
    yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{base}" y2="{base}"/>'
    for value in ticks(end / seconds):
        x = at(value * seconds, 0)[0]
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{base}" y2="{base + 4}"/>'
        yield f'<text x="{x}" y="{base + 18}" text-anchor="middle">{value:,.10g}</text>'
    yield f'<text x="{right}" y="{base + 36}" text-anchor="end">time, {unit} (simulated)</text>'


def _ran_dry(
    result: ReplayResult, at: Callable[[float, float], tuple[float, float]]
) -> Iterable[str]:
    if result.ran_dry is None:
        return
    x = at(result.ran_dry.time_s, 0)[0]
    side, gap = ("end", -4) if x > WIDTH / 2 else ("start", 4)
    yield f'<line class="dry" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    yield f'<text class="word" x="{x + gap}" y="{TOP - 4}" text-anchor="{side}">ran dry</text>'


def _preempted(
    result: ReplayResult, at: Callable[[float, float], tuple[float, float]]
) -> Iterable[str]:
    """A mark above the plot for each moment that the picture can tell apart."""
    for x in sorted({round(at(seconds, 0)[0]) for seconds in result.preempted_s}):
        yield f'<path class="preempted" d="M{x - 4},{TOP - 1} h8 l-4,7 Z"/>'


def _legend(result: ReplayResult, heading: str) -> Iterable[str]:
    most = (
        f"{result.trace}: at most {count(result.max_running, 'request')} together, "
        f"{result.peak_in_use:,} of {count(result.usable_blocks, 'block')}"
    )
    if preempted := result.counts.preemptions:
        most += f", {count(preempted, 'preemption')}"
    title = f"{heading}, {most}" if heading else most
    yield f'<text class="title" x="{LEFT}" y="18">{shown(title)}</text>'
    yield f'<rect class="use" x="{LEFT}" y="28" width="10" height="10"/>'
    yield f'<text x="{LEFT + 15}" y="37">in use</text>'
    yield f'<rect class="cached" x="{LEFT + 75}" y="28" width="10" height="10"/>'
    yield f'<text x="{LEFT + 90}" y="37">free, prefix still cached</text>'
