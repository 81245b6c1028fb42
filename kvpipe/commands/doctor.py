"""`kvpipe doctor FILE`: a log, a command line, or both -> what happened, what is wrong.

File: diagnosis.json.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

from kvpipe.answers.pasted_request import TooLittleSaid, read_pasted_request
from kvpipe.commands.base import Command, CommandOptions
from kvpipe.commands.diagnosis import MOST_LINES, Diagnosis, diagnose, of_log_alone
from kvpipe.commands.other_engine import log_of_another, of_another
from kvpipe.commands.planned_line import of_planned_line
from kvpipe.commands.trouble import NO_TROUBLE, Trouble
from kvpipe.engines.other_servers import OTHER_SERVERS, server_of_another
from kvpipe.engines.pasted import read_pasted
from kvpipe.engines.server_lines import read_server_line
from kvpipe.errors import ConfigError, Problem
from kvpipe.files.standard_input import kept_standard_input, kept_text
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.text.json_words import broken_json
from kvpipe.text.lines import Line, shell_lines, wrap

_CONTINUED = " \\"  # ends a line that goes on
SAMPLE = Path(__file__).parents[1] / "logs" / "sample.log"  # a start without any trouble


class Doctor(Command):
    class Options(CommandOptions):
        path: str | None

    summary = "A log or a command line: where the memory went, what is wrong, the line to run"
    wants = ("requests",)
    example = "kvpipe doctor sample"
    files = ("diagnosis.json",)
    word: ClassVar[str] = "command.path"
    # With these a pasted line begins, which is the word then.
    programs: ClassVar[tuple[str, ...]] = (
        *("vllm", "python", "python3", "docker", "podman"),
        *OTHER_SERVERS,
    )

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        path = self.options.path
        if not path or not path.strip():
            knob = (
                'kvpipe doctor FILE, kvpipe doctor "vllm serve ...", or kvpipe doctor - for what '
            )
            got = "null" if path is None else f"an empty word, '{path}'"
            raise ConfigError(
                Problem("command.path", "a file to look at", got, f"{knob}is piped in")
            )
        with _kept(str(SAMPLE) if path == "sample" else path) as kept:
            if (log := log_of_another(kept)) is not None:
                return _answer(of_another(log))
            try:
                asked = read_pasted_request(prepared, kept)
                found = of_planned_line(asked) or diagnose(asked)
            except TooLittleSaid as error:
                if error.log is None:
                    raise
                return _asking(of_log_alone(error.log), error)
        return _answer(found)


def _kept(word: str) -> AbstractContextManager[str]:
    """A file with what is pasted: the word's own, standard input (-), or the word itself, where it
    is a command line and no file has that name."""
    is_line = any(read(word) for read in (read_pasted, read_server_line, server_of_another))
    return kept_text(word) if is_line and not os.path.exists(word) else kept_standard_input(word)


def _answer(found: Diagnosis) -> Answer:
    return Answer(
        status=found.status,
        exit_code=1 if found.stops else 0,
        lines=partial(told, found),
        document={"schema": "kvpipe.diagnosis", "schema_version": 1, **asdict(found)},
        fields={"troubles": len(found.troubles), "paste": found.paste},
    )


def _asking(found: Diagnosis, error: TooLittleSaid) -> Answer:
    """What the log says by itself, then what must be said for more."""
    return Answer(
        status=error.status,
        exit_code=error.exit_code,
        lines=partial(told, found),
        document={"schema": "kvpipe.diagnosis", "schema_version": 1, **asdict(found)},
        fields={"troubles": len(found.troubles), "paste": ""},
        complaints=tuple(error.lines()),
    )


def told(found: Diagnosis, width: int) -> Iterator[Line]:
    """At most MOST_LINES lines: what was read, the memory, the troubles, the line to paste. Where
    there are more, the memory stands before all troubles but the worst."""
    about = wrap(found.about, width, "title", indent="")
    rest = [wrap(text, width) for text in (*found.memory, *found.capacity)]
    troubles = [_of_trouble(trouble, width) for trouble in found.troubles]
    paste = list(_of_paste(found, width))
    room = MOST_LINES - sum(map(len, (about, paste, *troubles[:1])))
    memory = list(_within(rest, room - bool(troubles[1:])))  # a line says how many more
    others = list(_within(troubles[1:], room - sum(map(len, memory)) - 1))
    yield from about
    yield from chain.from_iterable(memory)
    if not troubles:
        yield Line(NO_TROUBLE, "good")
    yield from chain.from_iterable((*troubles[:1], *others))
    if left := len(troubles[1:]) - len(others):
        yield Line(f"  {left} more in diagnosis.json", "faint")
    yield from paste


def _within(blocks: list[list[Line]], room: int) -> Iterator[list[Line]]:
    """The first of them, as many as there is room for."""
    for block in blocks:
        room -= len(block)
        if room < 0:
            return
        yield block


def _of_trouble(trouble: Trouble, width: int) -> list[Line]:
    return wrap(f"! {trouble.text}", width, "bad" if trouble.stops else "warning", indent="")


def _of_paste(found: Diagnosis, width: int) -> Iterator[Line]:
    if found.paste:
        yield Line(f"to run{f' {found.first}' if found.first else ''} (planned):")
        for line in shell_lines(found.paste, width - len(_CONTINUED)):
            yield from (Line(part, "good") for part in broken_json(line.text, width))


PLUGIN = Doctor
