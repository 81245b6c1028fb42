"""Engines that kvpipe plans only, started: their cases, who asks them, what differs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.live.batching_cases import batching_cases
from tools.live.engines import asked_in
from tools.live.environments import ENVIRONMENTS
from tools.live.llama_cases import llama_cases
from tools.live.planned_said import batching_differences, llama_differences

Json = dict[str, Any]
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """probe: runs in the engine's environment. differences: (case, folder, answer) -> words. row:
    an answer -> cells of the page's table, under `columns`."""

    cases: Callable[[], Iterable[Any]]
    probe: str
    differences: Callable[[Any, Path, Json], list[str]]
    columns: Sequence[str]
    row: Callable[[Json], Sequence[str]]


def _batching_row(answer: Json) -> Sequence[str]:
    per = "; ".join(f"{name} {kind['blocks_per_sector']}" for name, kind in answer["types"].items())
    return [
        f"{answer['sectors']:,}",
        f"{answer['sector_bytes']:,}",
        per,
        f"{min(answer['storable'], answer['max_requests']):,}",
        f"{answer['others'][1]['memory']:,}",
        "yes" if answer["generated"] else "no",
    ]


def _llama_row(answer: Json) -> Sequence[str]:
    lines = "<br>".join(f"`{line.partition(': ')[2]}`" for line in answer["printed"])
    return [f"{answer['n_ctx']:,}", str(answer["n_seq_max"]), lines]


PLANNED: Mapping[str, PlannedPart] = {
    "transformers": PlannedPart(
        cases=batching_cases,
        probe="batching_probe.py",
        differences=batching_differences,
        columns=(
            *("sectors", "bytes each", "blocks in one", "places for 512 tokens"),
            *("least bytes", "generates here"),
        ),
        row=_batching_row,
    ),
    "llama-cpp": PlannedPart(
        cases=llama_cases,
        probe="llama_probe.py",
        differences=llama_differences,
        columns=("n_ctx", "sequences", "what it prints"),
        row=_llama_row,
    ),
}


def planned_answers(name: str, only: str, known: Iterable[str]) -> dict[str, Json]:
    """By name of the case. known: those that need no answer."""
    part, skipped = PLANNED[name], set(known)
    chosen = [case for case in part.cases() if only in case.name and case.name not in skipped]
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        asked = [case.question(case.folder(Path(scratch))) for case in chosen]
        return asked_in(ENVIRONMENTS[name], HERE / part.probe, asked)


def planned_records(name: str, answers: Mapping[str, Json]) -> Iterator[Json]:
    """What kvpipe says today beside each kept answer."""
    part = PLANNED[name]
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        for case in part.cases():
            if case.name in answers:
                theirs = answers[case.name]
                found = part.differences(case, case.folder(Path(scratch)), theirs)
                row = part.row(theirs) if theirs["started"] else ()
                yield {
                    "case": case.name,
                    "kind": case.model.kind,
                    "engine": theirs,
                    "differences": found,
                    "row": row,
                }
