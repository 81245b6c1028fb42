"""What the probes share. They are scripts beside this file and run where an engine is: nothing but
the standard library, and nothing of kvpipe.

python SOME_probe.py CASES ANSWERS: JSON files, one case or answer a line. An answer is written as
soon as it is known, so that a crash loses one case only.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def answer_all(cases: str, answers: str, answer: Callable[[Json], Json]) -> int:
    with open(answers, "a") as out:
        for line in Path(cases).read_text().splitlines():
            case = json.loads(line)
            print(json.dumps({"name": case["name"], **answer(case)}), file=out, flush=True)
    return 0


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no text"
    return f"{type(error).__name__}: {text}"


@contextmanager
def captured() -> Iterator[Path]:
    """Everything that this process and its children write, in a file."""
    handle, name = tempfile.mkstemp(prefix="kvpipe-live-", suffix=".log")
    kept = [os.dup(1), os.dup(2)]
    try:
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        yield Path(name)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in enumerate(kept, 1):
            os.dup2(saved, number)
            os.close(saved)
        os.close(handle)
