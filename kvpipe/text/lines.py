"""Sections of text and tables -> lines of at most `width` characters, each with a style name.

Plain ASCII; tables are aligned columns, of which the last may wrap. No word is cut: settings, paths
and digests are there to be copied. Styles: "title", "good", "bad", "warning", "faint", "".
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

GAP = "  "
INDENT = "  "
WIDEST, NARROWEST = 100, 60  # columns: longer lines are hard to read


@dataclass(frozen=True)
class Line:
    text: str
    style: str = ""


@dataclass(frozen=True)
class Command:
    """A command to be copied: over as many lines as the width asks for."""

    text: str
    indent: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A title, an optional table, then paragraphs. align: "l" or "r" a column; the last column,
    when "l", is wrapped to the width that is left, or stands below its row where a word of it is
    longer than that. Of a table that is still too wide, the columns named in `spare` go, in their
    order, one by one; one that is wider even so is told row by row, each figure with its header."""

    title: str
    headers: Sequence[str] = ()
    align: str = ""
    rows: Sequence[Sequence[str]] = ()
    paragraphs: Sequence[Line] = ()
    spare: Sequence[str] = ()
    verbatim: Sequence[Line | Command] = ()  # no words are wrapped: to be copied


def terminal_width() -> int:
    """Columns: the terminal's within bounds, 80 in a pipe."""
    said = os.environ.get("COLUMNS", "")
    columns = int(said) if said.isdecimal() else 0
    if not columns and sys.__stdout__ is not None:
        with suppress(OSError, ValueError):  # no terminal, or closed
            columns = os.get_terminal_size(sys.__stdout__.fileno()).columns
    return max(NARROWEST, min(WIDEST, columns or 80))


def whole_words(text: str, width: int) -> list[str]:
    """Lines of whole words; a longer word (path, digest) stands alone, so that it can be copied."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def wrap(text: str, width: int, style: str = "", indent: str = INDENT) -> list[Line]:
    """Paragraphs of whole words: what follows the first line of one stands further in."""
    wrapped = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + ("" if style == "title" else "  "),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Line(line, style) for line in wrapped]


def lay_out(sections: Sequence[Section], width: int) -> Iterator[Line]:
    for number, section in enumerate(sections):
        if number:
            yield Line("")
        yield from wrap(section.title, width, "title", indent="")
        yield from _table(section, width)
        for paragraph in section.paragraphs:
            yield from wrap(paragraph.text, width, paragraph.style)
        for item in section.verbatim:
            if isinstance(item, Line):
                yield item
            else:
                yield from shell_lines(item.text, width - 2, item.indent)


def shell_lines(command: str, width: int, indent: str = "") -> Iterator[Line]:
    """A command over several lines that a shell reads as one: flags stay beside their values."""
    first, *words = command.replace(" --", "\n--").split("\n")
    lines = [f"{indent}{first}"]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(f"{indent}  {word}")
        else:
            lines[-1] += f" {word}"
    yield from (Line(f"{line} \\") for line in lines[:-1])
    yield Line(lines[-1])


def _table(section: Section, width: int) -> Iterator[Line]:
    table = [section.headers, *section.rows] if section.headers else list(section.rows)
    if not table:
        return
    widths = _widths(table, section.align, width)
    if section.headers and len(INDENT) + sum(widths) + len(GAP) * (len(widths) - 1) > width:
        yield from _table(_narrower(section), width) if section.spare else _told(section, width)
        return
    for number, row in enumerate(table):
        style = "faint" if section.headers and number == 0 else ""
        yield from (Line(text, style) for text in _row(row, widths, section.align, width))


def _widths(table: Sequence[Sequence[str]], align: str, width: int) -> list[int]:
    widths = [max(len(row[i]) for row in table) for i in range(len(align))]
    if align[-1] == "l":
        taken = len(INDENT) + sum(w + len(GAP) for w in widths[:-1])
        widths[-1] = min(widths[-1], max(12, width - taken))
    return widths


def _narrower(section: Section) -> Section:
    """Without the first of its columns that can be spared."""
    first, *spare = section.spare
    kept = [n for n, header in enumerate(section.headers) if header != first]
    return replace(
        section,
        headers=[section.headers[n] for n in kept],
        align="".join(section.align[n] for n in kept),
        rows=[[row[n] for n in kept] for row in section.rows],
        spare=spare,
    )


def _told(section: Section, width: int) -> Iterator[Line]:
    for first, *rest in section.rows:
        named = zip(section.headers[1:], rest, strict=True)
        parts = [f"{header} {cell}".strip() for header, cell in named if cell]
        yield from wrap(f"{first}: {', '.join(parts)}" if first else ", ".join(parts), width)


def _row(row: Sequence[str], widths: Sequence[int], align: str, width: int) -> Iterator[str]:
    *front, last = row
    cells = [
        cell.rjust(w) if side == "r" else cell.ljust(w)
        for cell, w, side in zip(front, widths, align, strict=False)
    ]
    start = INDENT + "".join(cell + GAP for cell in cells)
    if align[-1] == "r":
        yield (start + last.rjust(widths[-1])).rstrip()
    elif front and max(map(len, last.split()), default=0) > widths[-1]:
        yield start.rstrip()
        yield from (line.text for line in wrap(last, width, indent=3 * INDENT))
    else:
        parts = whole_words(last, widths[-1]) or [""]
        yield (start + parts[0]).rstrip()
        yield from (" " * len(start) + part for part in parts[1:])
