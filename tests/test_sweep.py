"""Sweeps: one table whichever launcher ran the jobs, and a bad job never loses the others."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from kvpipe.front.main import run
from kvpipe.front.sweep_folder import row_of_job

FOUR = ["-m", "cache=full,sliding", "cache.block_size=16,32", "backend=meta"]
full = pytest.mark.full


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(folder: Path) -> list[dict[str, str]]:
    (table,) = folder.glob("outputs/*/*/sweep.csv")
    with table.open() as file:
        return list(csv.DictReader(file))


def test_a_sweep_ends_in_one_table_and_one_csv(capsys, folder):
    assert run(FOUR) == 0
    out = capsys.readouterr().out
    assert "4 jobs, 4 fit" in out and max(map(len, out.splitlines())) <= 80
    table = rows(folder)
    assert [row["max_model_len"] for row in table] == ["8176", "8160", "131072", "131072"]
    for number in range(4):
        (plan,) = folder.glob(f"outputs/*/*/{number}/plan.json")
        assert json.loads(plan.read_text())["job"] == str(number)
    assert not (folder / "multirun").exists()


@full
def test_joblib_gives_the_same_table(capsys, folder, tmp_path_factory, monkeypatch):
    assert run(FOUR) == 0
    here = rows(folder)
    elsewhere = tmp_path_factory.mktemp("joblib")
    monkeypatch.chdir(elsewhere)
    assert run([*FOUR, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]) == 0
    assert rows(elsewhere) == here


@full
def test_a_job_with_a_wrong_value_is_its_status_and_the_others_run(capsys, folder):
    assert run(["-m", "cache.block_size=16,abc,32", "backend=meta"]) == 2
    table = rows(folder)
    assert [row["status"] for row in table] == ["fits", "wrong_request", "fits"]
    assert "got 'abc'" in table[1]["error"]


@full
def test_the_largest_exit_code_is_returned(folder):
    assert run(["-m", "scheduler.max_model_len=4096,131072", "backend=meta"]) == 1
    assert [row["status"] for row in rows(folder)] == ["fits", "does_not_fit"]


WRONG = [
    ["cache=full,slding"],
    ["grouping=hybrid,other"],
    ["cache.block_size=range(0,200000)"],
    ["cache=full,sliding", "hydra.launcher._target_=os.abort"],
]
MORE_WRONG = [
    ["cache=full,sliding", "cache.block_sze=3"],
    ["cache=full,sliding", "+cache.blocksize=3"],
    ["model=llama,nobody"],
    ["cache.block_size=[1,"],
    ["cache.block_size=interval(1,2)"],
    ["cache=glob(zz*)"],
    ["cache=full,sliding", "hydra.sweep.dir=/proc/nobody"],
    ["cache=full,sliding", "hydra.sweep.subdir=same"],
]


@pytest.mark.parametrize("wrong", [*WRONG, *(pytest.param(w, marks=full) for w in MORE_WRONG)])
def test_an_unknown_name_in_any_job_stops_the_sweep_before_it_writes(wrong, capsys, folder):
    assert run(["-m", *wrong, "backend=meta"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err and err.startswith("kvpipe: ")
    assert not (folder / "outputs").exists()


def test_json_is_one_line_a_job(capsys):
    assert run(["-m", "cache.block_size=16,abc", "backend=meta", "report=json"]) == 2
    good, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (good["status"], bad["status"], bad["exit_code"]) == ("fits", "wrong_request", 2)
    assert bad["schema"] == good["schema"] and "got 'abc'" in bad["errors"][0]


def test_a_job_that_was_killed_is_lost_not_forgotten(folder):
    job = ["cache=full", "hydra.sweep.dir=x"]
    row = row_of_job(folder, 7, job)
    assert (row["status"], row["exit_code"], row["error"]) == ("not started", None, "")
    (folder / "7").mkdir()
    row = row_of_job(folder, 7, job)
    assert (row["status"], row["exit_code"], row["overrides"]) == ("lost", 3, "cache=full")


@pytest.mark.full
def test_a_launcher_that_is_not_installed_is_one_line_with_the_command(capsys) -> None:
    assert run([*FOUR, "hydra/launcher=ray"]) == 2
    line = "hydra/launcher: expected the launcher ray to be installed, got none"
    assert capsys.readouterr().err == f"kvpipe: {line}; pip install hydra-ray-launcher\n"


def test_the_head_of_a_table_counts_each_verdict_and_no_common_word_runs_over_its_edge():
    from kvpipe.report.sweep_table import sweep_table

    common = " ".join(f"section_{n}.setting=value" for n in range(6))
    rows = [{"job": n, "status": "may_not_fit", "overrides": common} for n in range(2)]
    table = sweep_table(rows, (), width=80)
    assert table.startswith("2 jobs, 0 fit, 2 may not fit\n")
    assert "\n  all with section_0" in table and "\n    section_" in table


def test_a_sweep_is_told_in_the_words_of_its_line(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = ["-m", "smollm2-360m", "--on", "l4,h100", "--context", "1k", "--users", "2", "cache=fp8"]
    assert run([*said, "backend=meta", "hydra.sweep.dir=out"]) == 0
    table = capsys.readouterr().out
    assert "--on=l4" in table and "--on=h100_80gb" in table
    assert "--context=1k" in table and "--users=2" in table and "cache=fp8" in table
    assert "scheduler.max_model_len" not in table
    assert "scheduler.max_model_len=1k" in (tmp_path / "out" / "sweep.csv").read_text()
