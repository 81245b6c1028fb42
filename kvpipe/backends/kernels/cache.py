"""Where compiled kernels are kept: a folder only this user may write, files named by their content.

A library is machine code that this process will run, so it is loaded only if this user wrote it and
its bytes are those that were stored: `<stem>_<sha256 of the file>.so`. The hash is in the name, so
that one rename stores both; a file that a full disk, a power cut or somebody else changed is
recognised, removed and built again. Nothing is ever written in place: other processes run from it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from kvpipe.errors import ConfigError, Problem, printable

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_HASH_LETTERS = 24  # of 64: 96 bits


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/kvpipe, else ~/.cache/kvpipe."""
    if asked := os.environ.get("XDG_CACHE_HOME"):
        return Path(asked) / "kvpipe"
    return (_home() or Path("~")) / ".cache/kvpipe"


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # no $HOME, and no such user
        return None


def kept(folder: Path, stem: str, build: Callable[[Path], None]) -> Path:
    """The library of that stem in the folder; built by `build(path to write)` where there is none
    that may be loaded. ConfigError: the folder is not private, or cannot be written."""
    _private(folder)
    try:
        found = _intact(folder, stem)
        return found or _stored(folder, stem, build)
    except OSError as error:
        raise _refused(folder, str(error.strerror)) from error


def _intact(folder: Path, stem: str) -> Path | None:
    for library in sorted(folder.glob(f"{stem}_*.so")):
        try:
            fault = _fault(library, stem)
        except FileNotFoundError:  # another process removed it just now
            continue
        if not fault:
            return library
        print(
            f"kvpipe: {printable(str(library))}: {fault}; removed, and compiled again",
            file=sys.stderr,
        )
        library.unlink(missing_ok=True)
    return None


def _fault(library: Path, stem: str) -> str:
    """Why this file must not be loaded; "" if it may."""
    status = library.lstat()
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_uid != os.getuid():
        return f"owned by user {status.st_uid}, not by you"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return "writable by others"
    same = library.name == _name(stem, library.read_bytes())
    return "" if same else "not as it was stored"


def _name(stem: str, content: bytes) -> str:
    return f"{stem}_{sha256(content).hexdigest()[:_HASH_LETTERS]}.so"


def _stored(folder: Path, stem: str, build: Callable[[Path], None]) -> Path:
    """Built under a private name and renamed: any number of processes may start cold together."""
    aside = folder / f".{stem}.{os.getpid()}.{os.urandom(4).hex()}.so"
    try:
        build(aside)
        aside.chmod(0o700)
        library = folder / _name(stem, aside.read_bytes())
        os.replace(aside, library)
        return library
    finally:
        aside.unlink(missing_ok=True)


def _private(folder: Path) -> None:
    """Made with mode 0700 where it does not exist."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        here = folder.resolve()
        faults = list(filter(None, [_own_fault(here.stat()), *_parent_faults(here)]))
    except OSError as error:
        raise _refused(folder, str(error.strerror)) from error
    if faults:
        raise _refused(folder, faults[0])


def _own_fault(status: os.stat_result) -> str:
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"its mode is {stat.S_IMODE(status.st_mode):o}"
    return ""


def _parent_faults(folder: Path) -> Iterator[str]:
    """Who may write a parent can put another folder in this one's place between the check and the
    loading. Up to the user's home, as ssh does; /tmp is sticky, and so is safe."""
    home = _home()
    for parent in folder.parents:
        status = parent.stat()
        if status.st_uid not in (0, os.getuid()):
            yield f"{parent} belongs to user {status.st_uid}"
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            yield f"{parent} can be written by everyone"
        if parent == home:
            return


def _refused(folder: Path, got: str) -> ConfigError:
    return ConfigError(
        Problem(
            "backend.cache_dir",
            "a folder that you and nobody else can write, for compiled kernels",
            f"{folder}: {got}",
            "chmod 700 it, choose another (or XDG_CACHE_HOME), or choose backend=torch",
        )
    )
