"""The report for a person: the first screen; `report=full` has everything.

Colour on a terminal (NO_COLOR honoured), plain ASCII in a pipe (unless FORCE_COLOR is set).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import KvpipeError
from kvpipe.report.base import Answer, Report
from kvpipe.report.last_line import headline
from kvpipe.text.clean import clean
from kvpipe.text.lines import Line, terminal_width, whole_words

# Of a line of bars, for a stdout that has no block elements.
BARS_AS_ASCII = str.maketrans("\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", ".:-=+*#@")
STYLES = {
    "title": "bold",
    "good": "green",
    "bad": "bold red",
    "warning": "yellow",
    "faint": "dim",
    "": "",
}


class TextReport(Report):
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def render(
        self, answer: Answer, job: str | None, stream: TextIO, folder: Path | None = None
    ) -> None:
        width = terminal_width()
        lines = list((answer.screen or answer.lines)(width))
        if folder is not None:
            lines.append(Line(f"files    {folder}/"))
        if answer.verdict is not None:
            last, style = answer.verdict.text, answer.verdict.style
            lines += [Line(part, style) for part in whole_words(last, width)]
        write_lines(lines, stream)

    def render_failure(self, error: KvpipeError, job: str | None, stream: TextIO) -> None:
        write_lines(headline(error), stream)


def write_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """To a terminal, or where FORCE_COLOR asks for it, through rich, which is imported only then;
    else as plain text."""
    forced = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")
    if not stream.isatty() and not forced:
        stream.writelines(f"{_encodable(clean(line.text), stream)}\n" for line in lines)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True, force_terminal=True)
    for line in lines:
        console.print(Text(_encodable(clean(line.text), stream), style=STYLES[line.style]))


def _encodable(text: str, stream: TextIO) -> str:
    """The text as this stream can say it (a pipe on Windows is cp1252): bars become ASCII, other
    characters a `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(BARS_AS_ASCII).encode(encoding, "replace").decode(encoding)
    return text


PLUGIN = TextReport
