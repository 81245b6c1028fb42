"""Files that are either whole or not there: written beside their place, then renamed into it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kvpipe.files.named import named

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_MOST_LEFT = 10_000  # files of one name that killed processes of our number may have left


def write_atomic(path: Path | str, text: str) -> None:
    """Make `path` hold exactly `text` (UTF-8). A reader, or a run that dies half-way, never meets
    a part of it. The folder is made if need be; an existing file is replaced. OSError names it."""
    with named(path):
        _write(os.fspath(path), text.encode("utf-8"))


def _write(path: str, content: bytes) -> None:
    try:
        descriptor, temporary = _beside(path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor, temporary = _beside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _beside(path: str) -> tuple[int, str]:
    """A new file, open, in the same folder: a rename is atomic only inside one file system. It is
    nobody else's, and no link is followed (O_EXCL); whom it lets read it is the umask's to say."""
    folder, name = os.path.split(path)
    start = os.path.join(folder, f".{name}.{os.getpid()}")
    for n in range(_MOST_LEFT):
        with suppress(FileExistsError):
            return os.open(f"{start}-{n}", _NEW, 0o666), f"{start}-{n}"
    raise FileExistsError(17, "files of killed runs in the way", f"{start}-0")
