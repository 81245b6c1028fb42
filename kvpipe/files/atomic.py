"""Files that are either whole or not there: written beside their place, then renamed into it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kvpipe.files.named import named


def write_atomic(path: Path | str, text: str) -> None:
    """Make `path` hold exactly `text` (UTF-8). A reader, or a run that dies half-way, never meets
    a part of it. The folder is made if need be; an existing file is replaced. OSError names it."""
    path = Path(path)
    with named(path):
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic only inside one file system.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's 0600 would hide a result from a group
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
