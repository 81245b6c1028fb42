"""42 public troubles, each with what kvpipe says about it: rows of cases/field_reports.yaml."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from case_requests import prepared_case

from kvpipe.commands.run import answer_of
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import execute
from kvpipe.report.document import plan_document
from kvpipe.report.full import FullReport
from kvpipe.report.of_run import report_input

CASES = Path(__file__).parent / "cases"
ROWS: dict[str, dict[str, Any]] = yaml.safe_load((CASES / "field_reports.yaml").read_text())
RUNS = [(name, i) for name, row in ROWS.items() for i in range(len(row.get("runs", [])))]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """exit_code, the report and error lines joined into one line, plan.json ({} on an error)."""

    exit_code: int
    text: str
    document: dict[str, Any]


def answer(arguments: list[str]) -> Answer:
    asked = [word.replace("@conf", str(CASES / "conf")) for word in arguments]
    try:
        result = execute(prepared_case(asked))
    except KvpipeError as error:
        return Answer(exit_code=error.exit_code, text=" ".join(error.lines()), document={})
    report = report_input(result)
    out = io.StringIO()
    FullReport(FullReport.Options(name="full")).render(answer_of(report), None, out)
    document = json.loads(json.dumps(plan_document(report)))
    return Answer(exit_code=0, text=" ".join(out.getvalue().split()), document=document)


def at(document: Any, path: str) -> Any:
    """The value at "plan.ranks.0.size_bytes" in nested mappings and lists."""

    def step(value: Any, key: str) -> Any:
        return value[int(key)] if isinstance(value, list) else value[key]

    return reduce(step, path.split("."), document)


def layers_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    groups = document["plan"]["ranks"][0]["groups"]
    return [layer for group in groups for layer in group["layers"]]


@pytest.mark.parametrize(("name", "number"), RUNS)
def test_a_field_report_gets_its_answer(name: str, number: int) -> None:
    run = ROWS[name]["runs"][number]
    got = answer([*run["args"], *run.get("with", [])])
    assert got.exit_code == run["exit"], got.text
    for pattern in run.get("says", []):
        assert re.search(pattern, got.text), (pattern, got.text)
    for pattern in run.get("never", []):
        assert not re.search(pattern, got.text), (pattern, got.text)
    for path, value in run.get("values", {}).items():
        assert at(got.document, path) == pytest.approx(value, rel=0.005), path
    for path, length in run.get("counts", {}).items():
        assert len(at(got.document, path)) == length, path
    for path in run.get("positive", []):
        assert at(got.document, path) > 0, path
    if "layers" in run:
        kinds = Counter(layer["spec"]["kind"] for layer in layers_of(got.document))
        assert kinds == run["layers"]


def test_attention_blocks_beside_states_are_multiples_of_what_was_set() -> None:
    got = answer(ROWS["B30"]["runs"][0]["args"])
    specs = [layer["spec"] for layer in layers_of(got.document)]
    sizes = {spec["block_size"] for spec in specs if spec["kind"] == "full"}
    assert sizes and all(size % 64 == 0 for size in sizes)


def test_kernel_blocks_are_named_beside_the_managers_blocks() -> None:
    got = answer(ROWS["B32"]["runs"][0]["args"])
    groups = got.document["address_map"]["ranks"][0]["groups"]
    pairs = [(g["block_size"], g["kernel_block_size"]) for g in groups]
    assert any(kernel < block for block, kernel in pairs)
    assert all(block % kernel == 0 for block, kernel in pairs)


def test_draft_layers_draw_on_the_pool_of_all_others() -> None:
    got = answer(ROWS["B59"]["runs"][0]["args"])
    (rank,) = got.document["plan"]["ranks"]
    drafts = {f"model.layers.{i}.self_attn.attn" for i in range(40, 48)}
    pages = [page for tensor in rank["tensors"] for page in tensor["pages"]]
    assert drafts <= {page["layer"] for page in pages}
    assert rank["num_blocks"] == got.document["plan"]["num_blocks"]


# --- the data file ---
@cache
def reports() -> dict[str, dict[str, Any]]:
    return {
        row["id"]: row
        for row in json.loads(gzip.decompress((CASES / "field_reports.json.gz").read_bytes()))
    }


def test_every_report_has_a_row_and_every_row_a_report() -> None:
    assert set(ROWS) == set(reports())
    assert len(ROWS) == 42


def test_at_most_eight_are_out_of_reach_and_each_names_the_nearest_answer() -> None:
    out = [row for row in ROWS.values() if row["outcome"] == "out of reach"]
    assert len(out) <= 8
    assert all(row["nearest"] for row in out)


def test_rows_are_whole() -> None:
    for name, row in ROWS.items():
        assert row["outcome"] in ("value", "warning", "error", "out of reach"), name
        assert row["about"] and (row.get("runs") or row["outcome"] == "out of reach"), name
        if row["outcome"] == "warning":
            runs = row["runs"]
            assert any(run.get("says") for run in runs), name
            assert any(run.get("never") for run in runs), f"{name} has no negative twin"
