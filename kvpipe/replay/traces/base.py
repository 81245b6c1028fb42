"""The contract of a trace: options -> the requests of a workload, in order of arrival."""

from __future__ import annotations

import gzip
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TextIO

from pydantic import Field

from kvpipe.config import Section
from kvpipe.errors import ConfigError, Problem

SAMPLES = Path(__file__).parents[1] / "samples"
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """arrival_s: seconds since the first request. Lengths in tokens; the last output token is
    never stored. prefix_ids: an id for each block of prefix_block tokens of the prompt (the last
    may be short); equal ids mean equal tokens up to there."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    prefix_block: int = 0


class TraceOptions(Section):
    """Options that every trace has: which requests, and how the engine that serves them keeps time.

    max_requests: the first of them (null: all). arrivals: trace (at their times, divided by
    arrival_rate_scale) or at_once. A step takes step_seconds plus its new tokens divided by
    prefill_tokens_per_second: nominal figures, which set how long requests stay together.
    """

    name: str
    max_requests: Annotated[int, Field(ge=1)] | None
    arrivals: Literal["trace", "at_once"]
    arrival_rate_scale: Positive
    step_seconds: Positive
    prefill_tokens_per_second: Positive


class FileOptions(TraceOptions):
    """path: a file in the original format, or `sample`: the one that kvpipe ships."""

    path: str


class Trace(ABC):
    """A trace plugin: `Options` (a TraceOptions), a constructor that takes them, `requests`."""

    Options: ClassVar[type[TraceOptions]]

    def __init__(self, options: TraceOptions) -> None:
        self.options = options

    @abstractmethod
    def requests(self) -> list[TraceRequest]:
        """In order of arrival. ConfigError naming the file and line that cannot be read."""


class FileTrace(Trace):
    """A trace read line by line from a text file, gzipped or not."""

    Options: ClassVar[type[TraceOptions]] = FileOptions
    sample: ClassVar[str | None] = None  # file name in samples/
    header: ClassVar[str | None] = None  # what the first line must be
    format_name: ClassVar[str]

    @abstractmethod
    def parse(self, line: str) -> TraceRequest:
        """One request; ValueError or KeyError when the line is not one. arrival_s may have any
        origin: it is shifted so that the first request arrives at 0."""

    @property
    def path(self) -> Path:
        assert isinstance(self.options, FileOptions)
        if self.options.path != "sample":
            return Path(self.options.path).expanduser()
        if self.sample is None:
            raise ConfigError(
                Problem("trace.path", f"a file in {self.format_name} format", "'sample'")
            )
        return SAMPLES / self.sample

    def requests(self) -> list[TraceRequest]:
        found: list[TraceRequest] = []
        with opened(self.path) as file:
            if self.header is not None:
                self._check_header(file.readline())
            for number, line in enumerate(file, 2 if self.header else 1):
                if len(found) == self.options.max_requests:
                    break
                if line.strip():
                    found.append(self._parse(line, number))
        if not found:
            raise ConfigError(Problem("trace.path", "at least one request", f"none in {self.path}"))
        found.sort(key=lambda request: request.arrival_s)
        start = found[0].arrival_s
        return [shifted(request, start) for request in found]

    def _check_header(self, line: str) -> None:
        if line.strip() != self.header:
            raise ConfigError(
                Problem("trace.path", f"a file that starts '{self.header}'", repr(line.strip()))
            )

    def _parse(self, line: str, number: int) -> TraceRequest:
        try:
            request = self.parse(line)
            if request.prompt_tokens < 0 or request.output_tokens < 0:
                raise ValueError("a length below 0")
            return request
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                Problem(
                    "trace.path",
                    f"a request in {self.format_name} format on line {number} of {self.path}",
                    f"{line.strip()[:60]!r} ({error})",
                )
            ) from error


def shifted(request: TraceRequest, start: float) -> TraceRequest:
    """The request, arriving `start` seconds earlier."""
    return TraceRequest(
        arrival_s=request.arrival_s - start,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        prefix_ids=request.prefix_ids,
        prefix_block=request.prefix_block,
    )


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """A text file, unpacked if its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as unpacked:
                yield unpacked
        else:
            with path.open(encoding="utf-8") as plain:
                yield plain
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            Problem("trace.path", "a file that can be read", f"{path} ({reason})")
        ) from error
