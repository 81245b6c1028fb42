"""What installed packages register for kvpipe; the metadata of all is not read each time.

`importlib.metadata` takes tens of milliseconds to import and to read every package there is, and
mostly none of them speaks of kvpipe. So their entry_points.txt are looked through as text first, in
the folders of sys.path, where pip puts them; metadata that may lie elsewhere (an archive on the
path, a finder of somebody's own) is asked for as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint as EntryPoint
else:
    EntryPoint = object

_METADATA = (".dist-info", ".egg-info")
_OURS = b"[kvpipe."  # how a section of one of our groups begins


def entry_points(group: str) -> Sequence[EntryPoint]:
    """Of one group, such as `kvpipe.specs`."""
    return _of_path(tuple(sys.path)).get(group, ())


@lru_cache(maxsize=8)
def _of_path(path: tuple[str, ...]) -> dict[str, Sequence[EntryPoint]]:
    if _plain_finders() and not any(_speaks_of_us(folder) for folder in path):
        return {}
    from importlib.metadata import entry_points as installed

    every = installed()
    return {group: tuple(every.select(group=group)) for group in every.groups}


def _plain_finders() -> bool:
    """Whether metadata is found in the folders of sys.path and nowhere else."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    return [getattr(finder, "__name__", "") for finder in finders] == ["PathFinder"]


def _speaks_of_us(folder: str) -> bool:
    """Whether a package there may have an entry point of ours; an archive may."""
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return os.path.isfile(folder)
    return any(
        _OURS in _entry_points_text(os.path.join(folder, name))
        for name in names
        if name.endswith(_METADATA)
    )


def _entry_points_text(metadata: str) -> bytes:
    try:
        with open(os.path.join(metadata, "entry_points.txt"), "rb") as file:
            return file.read()
    except OSError:  # it registers nothing
        return b""
