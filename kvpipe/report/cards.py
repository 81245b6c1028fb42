"""The cards of several engines side by side, as SVG: what each does with the same memory.

A column is one card's budget line by line: what lies outside the cache, what the users' requests
read, what is lost. Colours are the memory map's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvpipe.answers.engine_comparison import Compared
from kvpipe.engines.plan import EnginePlan
from kvpipe.report.drawing import svg
from kvpipe.report.map_style import LIGHT_TEXT
from kvpipe.text.figures import count, size
from kvpipe.text.markup import shown

COLUMN, GAP, LEFT, TOP, TALL, FOOT = 150, 40, 30, 80, 380, 70
LEAST_LABEL = 16  # pixels of a part that has room for its words
MOST_LETTERS = 22  # of its words
_LOST = ("free_blocks", "unused_richer_rank", "out_of_reach")


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    num_bytes: int
    colour: str


def cards(found: Sequence[Compared], title: str) -> str:
    plans = [(each.name, each.plan) for each in found if each.plan is not None]
    most = max((sum(part.num_bytes for part in parts(plan)) for _, plan in plans), default=1)
    width = 2 * LEFT + max(1, len(plans)) * (COLUMN + GAP)
    height = TOP + TALL + FOOT
    lines = [
        f'<text class="section" x="{LEFT}" y="28">{shown(title)}</text>',
        f'<text class="faint" x="{LEFT}" y="48">one card each, the same scale; blue is read by '
        "requests, hatched is lost</text>",
    ]
    for i, (name, plan) in enumerate(plans):
        lines += _column(LEFT + i * (COLUMN + GAP), name, plan, most)
    return svg(width, height, title, lines)


def parts(plan: EnginePlan) -> list[Part]:
    """From the bottom: what is outside the cache, what is read, what is lost. They add up to what
    the budget starts from."""
    outside = [
        Part(name=step.name, num_bytes=-step.num_bytes, colour=_outside(step.name))
        for step in plan.budget.steps
        if step.num_bytes < 0
    ]
    read = Part(
        name=count(plan.users.steady, "request"),
        num_bytes=plan.users.steady * plan.needed_bytes,
        colour="payload",
    )
    lost = [
        Part(name=loss.name, num_bytes=loss.num_bytes, colour=_LOST[i % len(_LOST)])
        for i, loss in enumerate(plan.lost)
    ]
    return [*outside, read, *lost]


def _label(part: Part) -> str:
    """As many of its words as a column has room for, and its size."""
    told, words = size(part.num_bytes), part.name.split()
    while words and len(" ".join([*words, told])) > MOST_LETTERS:
        words.pop()
    return " ".join([*words, told])


def _outside(name: str) -> str:
    return "weights" if name == "weights" else "activations"


def _column(x: int, name: str, plan: EnginePlan, most: int) -> Iterator[str]:
    floor = float(TOP + TALL)
    yield f'<text class="label" x="{x}" y="{floor + 20:.0f}">{shown(name)}</text>'
    users = f"{count(plan.users.steady, 'user')}, {count(plan.tokens, 'token')}"
    yield f'<text class="faint" x="{x}" y="{floor + 38:.0f}">{users}</text>'
    for part in parts(plan):
        high = TALL * part.num_bytes / most
        floor -= high
        yield (
            f'<rect class="{part.colour} edge" x="{x}" y="{floor:.1f}" width="{COLUMN}" '
            f'height="{high:.1f}"><title>{shown(part.name)}: {size(part.num_bytes)}</title></rect>'
        )
        if high >= LEAST_LABEL:
            ink = "on-dark" if part.colour in LIGHT_TEXT else "label"
            words = _label(part)
            y = floor + high / 2 + 4
            yield f'<text class="{ink}" x="{x + 6}" y="{y:.1f}">{shown(words)}</text>'
