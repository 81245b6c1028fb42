"""What every benchmark shares: a fixed loop timed in the same run, to compare machines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from resource import RUSAGE_CHILDREN, getrusage

import pytest


def calibration() -> int:
    """A fixed loop of dictionary and integer work."""
    table: dict[int, int] = {}
    for i in range(200_000):
        table[i % 97] = table.get(i % 97, 0) + i
    return sum(table.values())


@pytest.fixture(scope="session")
def calibration_s() -> float:
    """CPU seconds of the fixed loop: the best of seven."""
    times = []
    for _ in range(7):
        start = time.process_time()
        calibration()
        times.append(time.process_time() - start)
    return min(times)


@pytest.fixture
def command_cpu_s(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Sequence[str], str], float]:
    """(arguments, folder) -> CPU seconds, user and system, of `python -m kvpipe` there, as on a
    machine where it ran before: Python keeps its byte code, whatever this environment says."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "kvpipe"]

    def measure(arguments: Sequence[str], folder: str) -> float:
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(
            [*command, *arguments], cwd=folder, check=True, capture_output=True, env=environment
        )
        after = getrusage(RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return measure


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process: a timing beside another test is none."""
    return 0
