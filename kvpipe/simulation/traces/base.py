"""The contract of a trace: options -> the requests of a workload, in order of arrival."""

from __future__ import annotations

import gzip
import os
import re
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal

from pydantic import Field

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.regular import open_regular
from kvpipe.request.config import Count, Section
from kvpipe.request.schema import shown
from kvpipe.simulation.traces.columns import Requests
from kvpipe.simulation.traces.columns import TraceRequest as TraceRequest  # a plugin's

SAMPLES = Path(__file__).parents[1] / "samples"
# Seconds, or a count a second. The bounds keep every quotient and sum of them finite.
Rate = Annotated[float, Field(ge=1e-6, le=1e9)]

MOST_TOKENS = 2**31  # of a prompt or an answer: beyond any model, so the file is wrong
MOST_REPLICAS = 4096
LATEST_S = 1e12  # seconds, 30,000 years
LONGEST_LINE = 2**24  # bytes
# What is kept of a file, unless trace.max_requests says how many; and the lines that it may have.
MOST_REQUESTS = 2_000_000
MOST_PREFIX_IDS = 20_000_000
MOST_LINES = 2 * MOST_REQUESTS
# What reading a file that somebody else wrote can raise, whatever is in it.
UNREADABLE = (OSError, EOFError, UnicodeError, ValueError, RuntimeError, zlib.error)
# ... and what a line of it can. RecursionError (deep brackets) is a RuntimeError.
NO_REQUEST = (ValueError, KeyError, IndexError, TypeError, OverflowError, RuntimeError)
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class TraceOptions(Section):
    """Options that every trace has: which requests, and how the engine that serves them keeps time.

    max_requests: the first of them (null: all). arrivals: trace (at their times, divided by
    arrival_rate_scale) or at_once. A step takes step_seconds plus its new tokens divided by
    prefill_tokens_per_second; auto, both: what the model and the card allow at best, divided by
    efficiency (20 ms and 20,000 tokens a second where no bandwidth of the card is known).
    acceptance_rate: chance of a drafted token (scheduler.num_speculative_tokens a step) to be
    accepted where those before it are. replicas: servers that share the requests; routing: which
    of them a request goes to, in turn or where the most of its prompt is known.
    """

    name: str
    max_requests: Count | None
    arrivals: Literal["trace", "at_once"]
    arrival_rate_scale: Rate
    step_seconds: Rate | Literal["auto"]
    prefill_tokens_per_second: Rate | Literal["auto"]
    efficiency: Annotated[float, Field(ge=1e-3, le=1)] = 1.0  # files of third parties lack it
    acceptance_rate: Annotated[float, Field(ge=0, le=1)]
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    routing: Literal["round_robin", "prefix"] = "round_robin"


class FileOptions(TraceOptions):
    """path: a file in the original format, or `sample`: the one that kvpipe ships."""

    path: str


class Trace(ABC):
    """A trace plugin: `Options` (a TraceOptions), a constructor that takes them, `requests`."""

    Options: ClassVar[type[TraceOptions]]

    def __init__(self, options: TraceOptions) -> None:
        self.options = options

    @abstractmethod
    def requests(self) -> Sequence[TraceRequest]:
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
            return Path(self.options.path)
        if self.sample is None:
            raise ConfigError(
                Problem("trace.path", f"a file in {self.format_name} format", "'sample'")
            )
        return SAMPLES / self.sample

    def requests(self) -> Requests:
        path, most = self.path, self.options.max_requests
        found = Requests()
        for number, line in lines(path):
            if len(found) == most:
                break
            too_many = len(found) >= MOST_REQUESTS or found.num_prefix_ids > MOST_PREFIX_IDS
            if most is None and too_many:
                raise ConfigError(_too_many(path))
            if number == 1 and self.header is not None:
                self._check_header(line)
            elif line.strip():
                self._enter(found, line, number, path)
        if not found:
            got = f"none in {named(path)}"
            raise ConfigError(Problem("trace.path", "at least one request", got))
        return found.in_order()

    def _check_header(self, line: str) -> None:
        if line.strip() != self.header:
            got = shown(line.strip())
            raise ConfigError(Problem("trace.path", f"a file that starts '{self.header}'", got))

    def _enter(self, found: Requests, line: str, number: int, path: Path) -> None:
        try:
            found.append(checked(self.parse(line)))
        except NO_REQUEST as error:
            raise ConfigError(
                Problem(
                    "trace.path",
                    f"a request in {self.format_name} format on line {number} of {named(path)}",
                    f"{line.strip()[:60]!r} ({reason(error)})",
                )
            ) from error


def _too_many(path: Path) -> Problem:
    expected = f"at most {MOST_REQUESTS:,} requests and {MOST_PREFIX_IDS:,} prefix ids"
    knob = "trace.max_requests=N takes the first N"
    return Problem("trace.path", expected, f"more in {named(path)}", knob)


def checked(request: TraceRequest) -> TraceRequest:
    """The request, its numbers within what can be replayed; ValueError otherwise."""
    if request.prompt_tokens == 0:
        raise ValueError("a prompt of 0 tokens, which no engine serves")
    for tokens in (request.prompt_tokens, request.output_tokens):
        if tokens < 0:
            raise ValueError("a length below 0")
        if tokens >= MOST_TOKENS:
            raise ValueError(f"a length of {MOST_TOKENS:,} tokens or more")
    if not isfinite(request.arrival_s) or not 0 <= request.arrival_s <= LATEST_S:
        raise ValueError(f"a time that is not 0 to {LATEST_S:g} seconds")
    return request


def whole(value: Any) -> int:
    """A count as a file writes it, a number or digits; ValueError or TypeError otherwise."""
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not a whole number")
    return value


def number(value: Any) -> float:
    """A time as JSON writes it; ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number")
    return float(value)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 text file, unpacked if its name ends in .gz: of one that grows,
    those that it had. ConfigError naming the file, and the line from which on it is none."""
    number = 0
    try:
        path = path.expanduser()
        with open_regular(path) as stored:
            packed = path.suffix == ".gz"
            file = gzip.GzipFile(fileobj=stored) if packed else stored
            size = None if packed else os.fstat(stored.fileno()).st_size
            for number, raw in enumerate(_raw_lines(file, size), 1):  # noqa: B007
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if number == MOST_LINES:
                    raise ValueError(f"more than {MOST_LINES:,} lines")
    except UNREADABLE as error:
        # A UnicodeError is of the line that was read; any other, of the one that would be next.
        at = number + (not isinstance(error, UnicodeError))
        where = f", line {at}" if number else ""
        got = f"{named(path)}{where} ({reason(error)})"
        raise ConfigError(Problem("trace.path", "a file that can be read", got)) from error


def _raw_lines(file: BinaryIO | gzip.GzipFile, size: int | None) -> Iterator[bytes]:
    """size: bytes to read (None: to the end, which a packed file has)."""
    left = size if size is not None else sys.maxsize
    while left > 0 and (line := file.readline(min(LONGEST_LINE, left))):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"a line of {LONGEST_LINE:,} bytes or more")
        left -= len(line)
        yield line


def named(path: Path) -> str:
    """A path in a message: as it is where it can be printed, else quoted; long ones are cut."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 200 else shown(text)


def reason(error: BaseException) -> str:
    """What an error says, on one line."""
    if isinstance(error, UnicodeError):
        return "not UTF-8 text"
    if isinstance(error, KeyError):
        return f"no {error}"
    if isinstance(error, RecursionError):
        return "brackets in brackets, too deep"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:160]
