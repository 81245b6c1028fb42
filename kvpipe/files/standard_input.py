"""`-` as a file: what is piped in, kept in a temporary file while it is read (it is read twice)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.named import named
from kvpipe.files.regular import kind_of

MOST_BYTES = 2**34
_BLOCK = 2**20


@contextmanager
def kept_standard_input(path: str) -> Iterator[str]:
    """The path itself, or that of a temporary file with all of standard input. ConfigError where
    that is a terminal or a device, or has no end within MOST_BYTES."""
    if path != "-":
        yield path
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise _refused("a terminal")
    kind = kind_of(os.fstat(sys.stdin.fileno()).st_mode)
    if kind == "a device":
        raise _refused(kind)
    with _kept(sys.stdin.buffer, "standard input") as name:
        yield name


@contextmanager
def kept_text(text: str) -> Iterator[str]:
    """A temporary file with this text."""
    with _kept(BytesIO(text.encode(errors="replace")), "what was pasted") as name:
        yield name


@contextmanager
def _kept(content: IO[bytes], called: str) -> Iterator[str]:
    """called: what a ConfigError about the file says instead of its path."""
    with NamedTemporaryFile(prefix="kvpipe-", suffix=".log", delete=False) as kept:
        try:
            with named(kept.name):
                _copy(content, kept)
                kept.close()
            yield kept.name
        except ConfigError as error:
            error.say_instead(kept.name, called)
            raise
        finally:
            Path(kept.name).unlink(missing_ok=True)


def _copy(source: IO[bytes], to: IO[bytes]) -> None:
    size = 0
    while block := source.read(_BLOCK):
        size += len(block)
        if size > MOST_BYTES:
            raise _refused(f"more than {MOST_BYTES:,} bytes")
        to.write(block)


def _refused(got: str) -> ConfigError:
    return ConfigError(Problem("command.path", "something that ends, piped into -", got))
