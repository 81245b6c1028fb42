"""A file or a stream -> its lines, numbered: read in blocks, each line bounded, UTF-8 or UTF-16.

Memory does not grow with the file. A file is read to the size it had when it was opened, so one
that grows ends; a FIFO or a device, which may never end, is refused.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.regular import open_regular
from kvpipe.request.schema import shown

BLOCK = 2**17  # bytes
LONGEST_LINE = 2**18  # characters; what a line has beyond them is left out
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Lines:
    """Iterates over (number, line). wanted: where given, blocks without any of these words are
    passed over. cut: lines longer than LONGEST_LINE. grew: the file did."""

    def __init__(
        self, stream: BinaryIO, size: int | None = None, wanted: Sequence[str] = ()
    ) -> None:
        self._stream = stream
        self._left = size
        self._wanted = wanted
        self.cut = 0
        self.grew = False

    def __iter__(self) -> Iterator[tuple[int, str]]:
        block = self._block()
        decoder = codecs.getincrementaldecoder(encoding_of(block))("replace")
        number, pending = 1, ""
        while block:
            *whole, rest = (pending + decoder.decode(block)).split("\n")
            if self._is_wanted(whole):
                yield from ((number + i, self._kept(line)) for i, line in enumerate(whole))
            number += len(whole)
            pending = rest[: LONGEST_LINE + 1]  # of a line without end, its beginning
            block = self._block()
        pending += decoder.decode(b"", final=True)
        if pending:
            yield number, self._kept(pending)
        if self._left == 0 and self._stream.read(1):
            self.grew = True

    def _is_wanted(self, whole: list[str]) -> bool:
        text = "\n".join(whole)
        return not self._wanted or any(words in text for words in self._wanted)

    def _kept(self, line: str) -> str:
        if len(line) > LONGEST_LINE:
            self.cut += 1
        return line[:LONGEST_LINE]

    def _block(self) -> bytes:
        if self._left is None:
            return self._stream.read(BLOCK)
        block = self._stream.read(min(BLOCK, self._left))
        self._left -= len(block)
        return block


def encoding_of(start: bytes) -> str:
    """Of the first bytes of a file: by its mark, or, where a cut left none, by its zero bytes."""
    for mark, name in _MARKS:
        if start.startswith(mark):
            return name
    sample = start[:4096]
    even, odd = sample[::2], sample[1::2]
    for name, zeros, text in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        # A crash may leave a file that goes on in zeros: then both halves have them.
        if len(zeros) >= 8 and zeros.count(0) > 0.7 * len(zeros) and text.count(0) < len(text) / 2:
            return name
    return "utf-8"


def open_log(asked: str) -> tuple[BinaryIO, int]:
    """A regular file and its size now; ConfigError naming what stands there instead."""
    try:
        stream = open_regular(Path(asked).expanduser())
        return stream, os.fstat(stream.fileno()).st_size
    except FileNotFoundError as error:
        raise no_log(f"{shown(asked)} (no such file)") from error
    except (OSError, ValueError, RuntimeError) as error:  # too long, of others, NUL, ~nobody
        reason = getattr(error, "strerror", None) or error
        raise no_log(f"{shown(asked)} ({reason})") from error


def no_log(got: str) -> ConfigError:
    return ConfigError(
        Problem("profiling.path", "the log file of an engine, since profiling=log", got)
    )
