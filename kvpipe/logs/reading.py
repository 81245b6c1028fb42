"""The log of an engine's start -> EngineLog, streamed: memory does not grow with the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO

from kvpipe.errors import ConfigError, Problem
from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.engines import llama_cpp, sglang, tensorrt_llm, vllm
from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.envelope import unwrapped
from kvpipe.logs.lines import Lines, open_log
from kvpipe.logs.load import TRIGGERS as LOAD
from kvpipe.logs.out_of_memory import WORDS as RAN_OUT
from kvpipe.logs.out_of_memory import out_of_memory
from kvpipe.logs.speaker import LONGEST_HEAD, Speaker, process_numbers, speaker_of
from kvpipe.logs.starts import Starts
from kvpipe.logs.text import Text
from kvpipe.request.schema import shown
from kvpipe.text.figures import count

ENGINES = (vllm.ENGINE, sglang.ENGINE, tensorrt_llm.ENGINE, llama_cpp.ENGINE)
# A line without any of these says nothing.
TRIGGERS = tuple(
    dict.fromkeys(
        words
        for engine in ENGINES
        for words in (
            *(phrase.trigger for phrase in engine.phrases),
            *engine.starts,
            *engine.errors,
            RAN_OUT,
            *LOAD,
        )
    )
)
NO_FIGURES = "a file without any"  # what a file without memory lines is called
MOST_CONTAINERS = 64  # engines of one file that are told apart
MOST_PROCESSES = 4096  # of engines in one file


def read_file(path: str) -> EngineLog:
    """The last start in a regular file. ConfigError: what is there instead, no line gives a memory
    or a capacity figure, or one gives a figure that is no number."""
    stream, size = open_log(path)
    with stream:
        return _read_once(path, size, os.fstat(stream.fileno()).st_mtime_ns)


@lru_cache(maxsize=2)
def _read_once(path: str, size: int, changed_ns: int) -> EngineLog:
    """A run asks twice: for the settings, and for the memory."""
    stream, _ = open_log(path)
    with stream:
        return read_stream(stream, shown(path), size)


def read_stream(stream: BinaryIO, path: str, size: int | None = None) -> EngineLog:
    """size: bytes to read at most (None: to the end)."""
    lines = Lines(stream, size, TRIGGERS)
    try:
        log = _read(lines, path)
    except OSError as error:
        got = f"{path} ({error.strerror})"
        raise ConfigError(Problem("profiling.path", "a file that can be read", got)) from error
    return log


def read_log(text: str, path: str = "the log") -> EngineLog:
    """The same of text that is already here."""
    return _read(enumerate(text.split("\n"), 1), path)


def _read(lines: Iterable[tuple[int, str]], path: str) -> EngineLog:
    reader = LogReader()
    for at, line in lines:
        try:
            reader.feed(at, line)
        except ValueError as error:
            raise _no_number(at, path, str(error)) from error
    return reader.log(tuple(_of_the_file(lines)))


def _of_the_file(lines: object) -> Iterator[str]:
    if isinstance(lines, Lines) and lines.cut:
        yield f"{count(lines.cut, 'line')} of the log cut, too long to be an engine's"
    if isinstance(lines, Lines) and lines.grew:
        yield "the log grew while it was read: what was there at the beginning is used"


class LogReader:
    """Lines in, the last start out. steps: characters looked at so far, for tests of growth."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, str], Starts] = {}
        self._processes: set[int] = set()
        self.steps = 0

    def feed(self, at: int, raw: str) -> None:
        """A numbered line of the file. ValueError: a figure that is no number."""
        self.steps += 2 * len(raw)  # colours and wrappers
        for line in unwrapped(raw):
            self.steps += len(line) * len(TRIGGERS)
            present = [words for words in TRIGGERS if words in line]
            if not present:  # nearly every line of a server that runs
                continue
            text = Text(line)
            if len(self._processes) < MOST_PROCESSES:
                self._processes.update(process_numbers(line))
            for engine in ENGINES:
                self._line(engine, text, at, present)
            if RAN_OUT in present and (found := out_of_memory(text.line, self._processes)):
                who = self._speaker(text, text.find(RAN_OUT))
                self._of(self._speaking(), who).runs_out(found, who, at)
            if any(words in LOAD for words in present):
                self._serves(text)
            self.steps += text.steps

    def _line(self, engine: LoggedEngine, text: Text, at: int, present: Sequence[str]) -> None:
        for sign in engine.starts:
            if sign in present:
                who = self._speaker(text, text.find(sign))
                self._of(engine, who).begins(sign, who.rank)
        for phrase in engine.phrases:
            if phrase.trigger not in present:
                continue
            for begin, values in phrase.values(text):
                who = self._speaker(text, begin)
                self._of(engine, who).take(phrase, values, who, at, text.line)
        found = [text.find(words) for words in engine.errors if words in present]
        begin = text.sentence_begins(min(found)) if found else 0
        if found and not text.line[:begin].endswith("`"):  # not an example of one in a warning
            self._of(engine, self._speaker(text, begin)).fails(text.line[begin:])

    def _serves(self, text: Text) -> None:
        """The queue is of the engine that started in that container."""
        source = self._speaker(text, LONGEST_HEAD).source
        for (_, container), starts in self._starts.items():
            if container == source:
                starts.serves(text.line)

    def _speaking(self) -> LoggedEngine:
        """Whose figures stand last: torch's own lines do not say which engine it is that ends."""
        told = [starts for starts in self._starts.values() if starts.last]
        return max(told, key=lambda starts: starts.last).engine if told else ENGINES[0]

    def _speaker(self, text: Text, begin: int) -> Speaker:
        text.steps += min(begin, LONGEST_HEAD)
        return speaker_of(text.line[max(0, begin - LONGEST_HEAD) : begin])

    def _of(self, engine: LoggedEngine, who: Speaker) -> Starts:
        key = (engine.name, who.source)
        if key not in self._starts:
            if len(self._starts) >= MOST_CONTAINERS:
                key = (engine.name, "")
            self._starts.setdefault(key, Starts(engine))
        return self._starts[key]

    def log(self, notes: tuple[str, ...] = ()) -> EngineLog:
        """The engine whose figures stand last; the others are named."""
        found = {key: starts for key, starts in self._starts.items() if starts.now.says_something}
        if not found:
            raise ConfigError(
                Problem(
                    "profiling.path",
                    "the log of an engine's start, with its memory lines (vLLM, SGLang, "
                    "TensorRT-LLM, llama.cpp)",
                    NO_FIGURES,
                )
            )
        (engine, source), chosen = max(found.items(), key=lambda item: item[1].last)
        others = [" ".join(filter(None, key)) for key in found if key != (engine, source)]
        if others:
            mine = " ".join(filter(None, (engine, source)))
            notes += (
                f"the file has {len(found)} engines: {mine} is read, not {', '.join(others)}",
            )
        if chosen.count > 1:
            notes += (f"the file has {chosen.count} starts: the last one is read",)
        return chosen.log(notes)


def _no_number(at: int, path: str, text: str) -> ConfigError:
    expected = f"figures of less than 2**63 on line {at} of {path}"
    return ConfigError(
        Problem("profiling.path", expected, shown(text), "is the log cut or edited there?")
    )
