"""Asks an engine's environment about many cases in one process; a crash costs its case only."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tools.live.environments import Environment

PROBE = Path(__file__).with_name("vllm_probe.py")
Json = dict[str, Any]


def ask(environment: Environment, questions: Sequence[Json], processes: int = 1) -> dict[str, Json]:
    """Answers by name. processes 1: engines live in the probe's own process, one after another;
    one with a draft leaves its process unfit for others, and has its own."""
    alone = [[question] for question in questions if question["is_alone"]]
    together = [question for question in questions if not question["is_alone"]]
    answers: dict[str, Json] = {}
    for part in filter(None, (together, *alone)):
        answers |= _ask(environment, part, processes)
    return answers


def _ask(environment: Environment, questions: Sequence[Json], processes: int) -> dict[str, Json]:
    return asked_in(environment, PROBE, questions, _in_process(processes))


def asked_in(
    environment: Environment,
    probe: Path,
    questions: Sequence[Json],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Json]:
    """Answers by name, from `probe CASES ANSWERS` in the environment, started again after a crash
    with the cases that are left. variables: beside the environment's own. One thread: tiny models
    gain nothing from more, and waiting threads burn cores."""
    answers: dict[str, Json] = {}
    among = {**environment.environ(), "OMP_NUM_THREADS": "1", **variables}
    todo = list(questions)
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as folder:
        asked, said = Path(folder) / "cases", Path(folder) / "answers"
        while todo:
            asked.write_text("\n".join(map(json.dumps, todo)))
            said.write_text("")
            command = [str(environment.python), str(probe), str(asked), str(said)]
            done = subprocess.run(command, env=among, capture_output=True, text=True, cwd=folder)
            found = [json.loads(line) for line in said.read_text().splitlines()]
            answers |= {answer["name"]: answer for answer in found}
            todo = todo[len(found) :]
            if todo:  # the process ended in the middle of the next one
                lost = todo.pop(0)
                answers[lost["name"]] = _lost(lost, done)
    return answers


def _in_process(processes: int) -> Mapping[str, str]:
    """The engine's core is in the probe's process, where its plan is looked at; workers that are
    processes of their own are bound by hand, since by itself the engine wants a NUMA node each."""
    several = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(processes)))}
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(several if processes > 1 else {})}


def _lost(case: Json, done: subprocess.CompletedProcess[str]) -> Json:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no output"
    error = f"the process ended with {done.returncode}: {last}"
    return {
        "name": case["name"],
        "started": False,
        "error": error,
        "log": "",
        "seconds": 0,
        "others": [],
    }
