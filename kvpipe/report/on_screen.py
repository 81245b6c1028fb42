"""Blocks of a screen -> those that its lines hold. Each stands whole, in fewer words or not at all:
half a sentence tells nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvpipe.text.lines import Line

Blocks = Mapping[str, list[Line]]


def on_screen(blocks: Blocks, steps: Iterable[Blocks], room: int) -> Blocks:
    """In at most `room` lines where the steps are enough. A step: what stands for some blocks from
    then on, [] nothing; it is taken where there is no room yet and it saves a line."""
    for instead in steps:
        if lines_of(blocks) <= room:
            break
        shorter = {**blocks, **{name: instead[name] for name in instead if name in blocks}}
        if lines_of(shorter) < lines_of(blocks):
            blocks = shorter
    return blocks


def lines_of(blocks: Blocks) -> int:
    return sum(map(len, blocks.values()))
