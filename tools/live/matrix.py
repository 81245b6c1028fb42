#!/usr/bin/env python
"""Real engines against kvpipe: every case through both, and docs/live.md with what differed.

python tools/live/matrix.py vllm-0.32.0 vllm-0.28.0
python tools/live/matrix.py llama-cpp transformers        # engines that are planned only
python tools/live/matrix.py vllm-0.32.0 --only gemma3     # some cases; the page is not written
python tools/live/matrix.py --page                        # the page again, from kept answers

Answers are kept in the cache folder, engine by engine and a few cases at a time: a run that was cut
off goes on with --missing. The page is made of all that are there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.cases import Case, cases  # noqa: E402
from tools.live.engines import ask  # noqa: E402
from tools.live.environments import ENVIRONMENTS, cache_folder, missing  # noqa: E402
from tools.live.page import PlannedTable, write_page  # noqa: E402
from tools.live.planned_matrix import PLANNED, planned_answers, planned_records  # noqa: E402
from tools.live.said import said  # noqa: E402
from tools.live.serving import kept as served_before  # noqa: E402

Json = dict[str, Any]
# No weights and no tokenizer are here: both are said to the engine beside every case.
ALWAYS = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True}
AT_A_TIME = 6  # cases between one keeping of answers and the next
ALWAYS_IN_WORDS = ("--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager")


def question(case: Case, folder: Path, draft: Path | None, version: str) -> Json:
    """What the engine is asked: the same settings in its own words, or kvpipe's own line."""
    asked: Json = {"name": case.name, "memory_bytes": case.memory_bytes, "usage": "server"}
    asked["is_alone"] = "speculative_config" in case.arguments
    if case.setting.from_serve_line:
        line = said(case, folder, draft, version, ())["serve"]
        command, verb, *words = shlex.split(line)
        assert (command, verb) == ("vllm", "serve"), line
        return asked | {"serve": ["--model", *words, *ALWAYS_IN_WORDS]}
    arguments = {
        **ALWAYS,
        "model": str(folder),
        "kv_cache_memory_bytes": case.memory_bytes,
        **case.arguments,
    }
    if draft is not None:
        arguments["speculative_config"] = {**arguments["speculative_config"], "model": str(draft)}
    return asked | {"arguments": arguments}


def answers_of(name: str, chosen: Sequence[Case], folders: dict[str, Path], scratch: Path) -> Json:
    """By the name of the case. Cases of several processes come last."""
    version, found = name.removeprefix("vllm-"), {}
    for processes in sorted({case.setting.processes for case in chosen}):
        asked = [
            question(case, folders[case.model.name], case.model.write_draft(scratch), version)
            for case in chosen
            if case.setting.processes == processes
        ]
        found |= ask(ENVIRONMENTS[name], asked, processes)
    return found


def parts(name: str, only: str, known: Collection[str]) -> Iterator[Json]:
    """What the engine answered, by name of the case, some cases at a time. known: those that need
    no answer."""
    if name in PLANNED:
        yield planned_answers(name, only, known)
        return
    chosen = [case for case in cases() if only in case.name and case.name not in known]
    for first in range(0, len(chosen), AT_A_TIME):
        yield run(name, chosen[first : first + AT_A_TIME])


def run(name: str, chosen: Sequence[Case]) -> Json:
    """Every answer to these cases, from engines of one process where one is enough."""
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        folders = {case.model.name: case.model.write(Path(scratch)) for case in chosen}
        return answers_of(name, chosen, folders, Path(scratch))


def compared(name: str, kept: Json) -> Iterator[Json]:
    """One record a case: what kvpipe says today, what the engine did, where they differ."""
    from tools.live.compare import differences

    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        for case in cases():
            theirs = kept["answers"].get(case.name)
            if theirs is None:
                continue
            memories = [other["memory"] for other in theirs.get("others", ())]
            folders = case.model.write(Path(scratch)), case.model.write_draft(Path(scratch))
            ours = said(case, *folders, name.removeprefix("vllm-"), memories)
            yield {
                "case": case.name,
                "kind": case.model.kind,
                "kvpipe": ours,
                "engine": theirs,
                "differences": differences(ours, theirs),
            }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--missing", action="store_true", help="cases without a kept answer")
    parser.add_argument("--page", action="store_true", help="write the page from kept answers")
    asked = parser.parse_args(argv)
    if unknown := [name for name in asked.engines if name not in ENVIRONMENTS]:
        print(f"engine: expected one of {', '.join(ENVIRONMENTS)}, got {', '.join(unknown)}")
        return 2
    if command := missing(asked.engines):
        print(f"make the environment first: {command}")
        return 2
    for name in asked.engines:
        _ask_and_keep(name, asked.only, asked.missing)
    names = [name for name in asked.engines or ENVIRONMENTS if kept_answers(name).exists()]
    for name in names:
        for record in _records(name):
            if asked.only in record["case"]:
                print(f"{name}: {record['case']}: {'; '.join(record['differences']) or 'equal'}")
    if asked.page or not asked.only:
        _write()
    return 0


def _ask_and_keep(name: str, only: str, missing_alone: bool) -> None:
    before = answers_kept(name) if only or missing_alone else {}
    known = tuple(before) if missing_alone else ()
    answers, today = dict(before), date.today().isoformat()
    for found in parts(name, only, known):
        answers |= {case: {**answer, "date": today} for case, answer in found.items()}
        kept = {"date": today, "answers": answers}
        kept_answers(name).write_text(json.dumps(kept, indent=1))


@cache
def _records(name: str) -> list[Json]:
    """kvpipe is asked about every case once, however often they are told."""
    kept = json.loads(kept_answers(name).read_text())
    if name in PLANNED:
        return list(planned_records(name, kept["answers"]))
    return list(compared(name, kept))


def _write() -> None:
    """The page, from all answers that are kept."""
    kept = [name for name in ENVIRONMENTS if kept_answers(name).exists()]
    days = {name: json.loads(kept_answers(name).read_text())["date"] for name in kept}
    vllms = {name: (days[name], _records(name)) for name in kept if name not in PLANNED}
    tables = [
        PlannedTable(
            name=name,
            day=days[name],
            records=_records(name),
            num_cases=len(list(PLANNED[name].cases())),
            columns=PLANNED[name].columns,
        )
        for name in kept
        if name in PLANNED
    ]
    served = {name: found for name in ENVIRONMENTS if (found := served_before(name))}
    write_page(ROOT / "docs" / "live.md", vllms, len(list(cases())), tables, served)


def kept_answers(name: str) -> Path:
    return cache_folder() / f"{name}-answers.json"


def answers_kept(name: str) -> Json:
    """By name of the case; none where the engine was never asked."""
    path = kept_answers(name)
    return json.loads(path.read_text())["answers"] if path.exists() else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
