"""What stands at a path, where a file that ends is wanted: a FIFO or a device may never end."""

from __future__ import annotations

import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO, which may never end: save it to a file first"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def not_regular(path: Path) -> str:
    """What it is in words; "" for a regular file. OSError where nothing is there."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return ""
    return next((word for test, word in _KINDS if test(mode)), "no regular file")
