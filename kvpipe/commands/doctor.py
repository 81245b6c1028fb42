"""`kvpipe doctor FILE`: a log, a command line, or both -> what happened, what is wrong.

File: diagnosis.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from kvpipe.answers.pasted_request import TooLittleSaid, read_pasted_request
from kvpipe.commands.base import Command, CommandOptions
from kvpipe.commands.diagnosis import MOST_LINES, Diagnosis, diagnose, of_log_alone
from kvpipe.engines.pasted import read_pasted
from kvpipe.errors import ConfigError, Problem
from kvpipe.files.standard_input import kept_standard_input, kept_text
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.text.lines import Line

SAMPLE = Path(__file__).parents[1] / "logs" / "sample.log"  # a start without any trouble


class Doctor(Command):
    class Options(CommandOptions):
        path: str | None

    summary = "A log or a command line: where the memory went, what is wrong, the line to run"
    example = "kvpipe doctor sample"
    files = ("diagnosis.json",)
    word: ClassVar[str] = "command.path"
    # With these a pasted line begins, which is the word then.
    programs: ClassVar[tuple[str, ...]] = ("vllm", "python", "python3", "docker", "podman")

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        path = self.options.path
        if path is None:
            knob = (
                'kvpipe doctor FILE, kvpipe doctor "vllm serve ...", or kvpipe doctor - for what '
            )
            raise ConfigError(
                Problem("command.path", "a file to look at", "null", f"{knob}is piped in")
            )
        with _kept(str(SAMPLE) if path == "sample" else path) as kept:
            try:
                found = diagnose(read_pasted_request(prepared, kept))
            except TooLittleSaid as error:
                if error.log is None:
                    raise
                return _asking(of_log_alone(error.log), error)
        lines = list(told(found))
        return Answer(
            status="does_not_fit" if found.stops else "fits",
            exit_code=1 if found.stops else 0,
            lines=lambda width: lines,
            document={"schema": "kvpipe.diagnosis", "schema_version": 1, **asdict(found)},
            fields={"troubles": len(found.troubles), "paste": found.paste},
        )


def _kept(word: str) -> AbstractContextManager[str]:
    """A file with what is pasted: the word's own, standard input (-), or the word itself, where it
    is a command line and no file has that name."""
    is_line = not Path(word).exists() and read_pasted(word) is not None
    return kept_text(word) if is_line else kept_standard_input(word)


def _asking(found: Diagnosis, error: TooLittleSaid) -> Answer:
    """What the log says by itself, then what must be said for more."""
    return Answer(
        status=error.status,
        exit_code=error.exit_code,
        lines=lambda width: told(found),
        document={"schema": "kvpipe.diagnosis", "schema_version": 1, **asdict(found)},
        fields={"troubles": len(found.troubles), "paste": ""},
        complaints=tuple(error.lines()),
    )


def told(found: Diagnosis) -> Iterator[Line]:
    """At most MOST_LINES lines: what was read, the memory, the troubles, the line to paste."""
    yield Line(found.about, "title")
    room = MOST_LINES - 1 - (2 if found.paste else 0) - len(found.troubles[:1])
    rest = [*found.memory, *found.capacity]
    troubles = list(found.troubles)
    kept = troubles[: max(1, room - len(rest) + 1)]
    for text in rest[: room - len(kept) + 1]:
        yield Line(f"  {text}")
    if not troubles:
        yield Line("nothing is wrong that kvpipe knows of", "good")
    for trouble in kept:
        yield Line(f"! {trouble.text}", "bad" if trouble.stops else "warning")
    if found.paste:
        yield Line(f"to run{f' {found.first}' if found.first else ''} (planned):")
        yield Line(found.paste, "good")


PLUGIN = Doctor
