"""The folder of a sweep: who has it, which of its jobs are done, and what each of them left.

sweep.json (the jobs and the version) is written before the first job; a job is done once its
result.json is there. So a sweep that was stopped, however it was, goes on where it stopped when the
same command names its folder: hydra.sweep.dir=FOLDER.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvpipe import __version__
from kvpipe.errors import ConfigError, Problem
from kvpipe.files.atomic import write_atomic
from kvpipe.files.folders import new_folder
from kvpipe.files.regular import open_regular

NOT_STARTED = "not started"
_LONGEST = 2**28  # bytes of a list of jobs
_FINAL = (
    "fits",
    "may_not_fit",
    "does_not_fit",
    "wrong_request",
)  # run again, a job would say the same


@contextmanager
def sweep_folder(wanted: Path, jobs: Sequence[Sequence[str]]) -> Iterator[Path]:
    """`wanted` where it holds these jobs, not all done; else a new folder. Ours until the end."""
    manifest = json.dumps({"kvpipe": __version__, "jobs": [list(job) for job in jobs]}, indent=1)
    resumed = _text(wanted / "sweep.json") == f"{manifest}\n" and len(pending(wanted, jobs)) > 0
    folder = wanted if resumed else new_folder(wanted)
    with _held(folder):
        if not resumed:
            write_atomic(folder / "sweep.json", f"{manifest}\n")
        yield folder


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The lock ends with the process that has it, however that ends."""
    with open(folder / ".lock", "a", opener=_at_once) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            wanted = "the folder of a sweep that no other process is running"
            raise ConfigError(Problem("hydra.sweep.dir", wanted, f"'{folder}'")) from error
        yield


def _at_once(path: str, flags: int) -> int:
    """A FIFO or a link that somebody put there is refused, not waited for or followed."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def pending(folder: Path, jobs: Sequence[Sequence[str]]) -> list[int]:
    """The numbers of the jobs that are not done."""
    return [n for n in range(len(jobs)) if (_result(folder, n) or {}).get("status") not in _FINAL]


def row_of_job(folder: Path, number: int, overrides: Sequence[str]) -> dict[str, Any]:
    """What a job left. One that left nothing is `lost` (its process was killed), or was not begun:
    the sweep was stopped before."""
    shown = " ".join(o for o in overrides if not o.startswith("hydra"))
    row: dict[str, Any] = {"job": number, "overrides": shown}
    left = _result(folder, number)
    if left is None and not (folder / str(number)).exists():
        return row | {"status": NOT_STARTED, "exit_code": None, "error": ""}
    if left is None:
        return row | {"status": "lost", "exit_code": 3, "error": "the job left no result"}
    return row | left


def _result(folder: Path, number: int) -> dict[str, Any] | None:
    try:
        found = json.loads(_text(folder / str(number) / "result.json"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(_LONGEST).decode("utf-8")
    except (OSError, ValueError):
        return ""


def quoted(folder: Path) -> str:
    """A folder as a value in Hydra's grammar."""
    return "'" + str(folder).replace("\\", "\\\\").replace("'", "\\'") + "'"


def in_a_shell(folder: Path) -> str:
    """The setting as it is typed: quoted for Hydra and for the shell where the name is odd."""
    if re.fullmatch(r"[A-Za-z0-9_./-]+", str(folder)):
        return f"hydra.sweep.dir={folder}"
    return shlex.quote(f"hydra.sweep.dir={quoted(folder)}")
