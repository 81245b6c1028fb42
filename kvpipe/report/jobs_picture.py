"""The jobs of a sweep over engines as one picture: users by engine, a group of bars a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvpipe.report.drawing import svg
from kvpipe.report.sweep_table import said_apart
from kvpipe.text.figures import count
from kvpipe.text.markup import shown

MOST_JOBS = 60  # a picture of more is no picture
WIDTH, LEFT, NAMES, NUMBERS = 900, 30, 110, 130
_UNTOLD = ("command", "report", "hydra")  # words that say nothing of a plan
TOP, TITLE, BAR, GAP = 76, 24, 18, 14


def jobs_picture(rows: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> str:
    """rows: of the jobs, with `users_<engine>` where an engine serves. All bars on one scale."""
    alike = [word for word in said_apart(rows) if not word.startswith(_UNTOLD)]
    drawn, common = rows[:MOST_JOBS], " ".join(alike)
    users = [row.get(f"users_{name}") or 0 for row in drawn for name in engines]
    title = f"Users by engine{', ' if common else ''}{common}"
    left_out = "" if len(rows) <= MOST_JOBS else f"; the first {MOST_JOBS} of {len(rows):,} jobs"
    lines = [
        f'<text class="section" x="{LEFT}" y="28">{shown(title[:110])}</text>',
        f'<text class="faint" x="{LEFT}" y="50">requests of the asked length at once, all '
        f"decoding; one scale{left_out}</text>",
    ]
    y = float(TOP)
    for row in drawn:
        lines += _group(row, engines, y, max(users, default=0) or 1, said_apart(rows))
        y += TITLE + BAR * len(engines) + GAP
    return svg(WIDTH, y, title, lines)


def _group(
    row: Mapping[str, Any], engines: Sequence[str], top: float, most: int, common: Sequence[str]
) -> Iterator[str]:
    words = [word for word in str(row.get("overrides", "")).split() if word not in common]
    name = " ".join(words) or f"job {row['job']}"
    yield f'<text class="label" x="{LEFT}" y="{top + 12:.0f}">{shown(name[:120])}</text>'
    for i, engine in enumerate(engines):
        y, users = top + TITLE + BAR * i, row.get(f"users_{engine}")
        wide = (WIDTH - 2 * LEFT - NAMES - NUMBERS) * (users or 0) / most
        told = "refuses, or came to nothing" if users is None else count(users, "user")
        yield f'<text class="faint" x="{LEFT}" y="{y + 12:.0f}">{shown(engine)}</text>'
        yield (
            f'<rect class="payload edge" x="{LEFT + NAMES}" y="{y:.0f}" width="{wide:.1f}" '
            f'height="{BAR - 4}" data-users="{users or 0}"/>'
        )
        yield (
            f'<text class="label" x="{LEFT + NAMES + wide + 8:.1f}" y="{y + 12:.0f}">{told}</text>'
        )
