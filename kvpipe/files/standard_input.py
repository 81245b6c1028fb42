"""`-` as a file: what is piped in, kept in a temporary file while it is read (it is read twice)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from kvpipe.errors import ConfigError, Problem


@contextmanager
def kept_standard_input(path: str) -> Iterator[str]:
    """The path itself, or that of a temporary file with all of standard input."""
    if path != "-":
        yield path
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError(Problem("command.path", "something piped into -", "a terminal"))
    with _kept(sys.stdin.buffer) as name:
        yield name


@contextmanager
def kept_text(text: str) -> Iterator[str]:
    """A temporary file with this text."""
    with _kept(BytesIO(text.encode(errors="replace"))) as name:
        yield name


@contextmanager
def _kept(content: IO[bytes]) -> Iterator[str]:
    with NamedTemporaryFile(prefix="kvpipe-", suffix=".log", delete=False) as kept:
        name = kept.name
        shutil.copyfileobj(content, kept)
    try:
        yield name
    finally:
        Path(name).unlink(missing_ok=True)
