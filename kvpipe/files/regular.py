"""What stands at a path, where a file that ends is wanted: a FIFO or a device may never end."""

from __future__ import annotations

import os
import stat
from errno import EINVAL
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO

from kvpipe.files.named import named

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO, which may never end: save it to a file first"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: Path) -> BinaryIO:
    """The file, to be read. OSError, whose words are what stands there, where it is none: nothing
    is waited for, whatever takes its place meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if kind := kind_of(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(EINVAL, kind, str(path))
    return BufferedReader(_Named(descriptor, path))


class _Named(FileIO):
    """A file whose errors while it is read name it: the system's do not."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, "rb")
        self._path = path

    def readinto(self, buffer: Any) -> int:
        with named(self._path):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with named(self._path):
            return super().readall()


def kind_of(mode: int) -> str:
    """What a file of that mode is in words; "" for a regular one."""
    if stat.S_ISREG(mode):
        return ""
    return next((word for test, word in _KINDS if test(mode)), "no regular file")
