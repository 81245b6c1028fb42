"""benchmarks/gpu.sh, rehearsed: it resumes, it names what failed, and it ends with a page."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("gpu_script", ROOT / "benchmarks/gpu.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_script"] = module
    spec.loader.exec_module(module)
    return module


def step(gpu, name: str, code: str, limit_s: float = 30):
    command = [sys.executable, "-c", code]
    return gpu.Step(name=name, title=name, command=command, limit_s=limit_s, told=str.strip)


def test_a_step_that_passed_is_not_run_again_and_one_that_failed_is(gpu, tmp_path):
    count = tmp_path / "count"
    good = step(gpu, "good", f"open({str(count)!r}, 'a').write('x'); print('fine')")
    bad = step(gpu, "bad", "print('FAILED tests/x.py::test_y - boom'); raise SystemExit(1)")
    assert gpu.run([good, bad], tmp_path / "out", "abc") == 1
    assert gpu.run([good, bad], tmp_path / "out", "abc") == 1
    assert count.read_text() == "x"
    told = (tmp_path / "out/page.md").read_text()
    assert "### good\n\nfine" in told and "**Failed.**\n\n- FAILED tests/x.py::test_y" in told
    assert gpu.run([good], tmp_path / "out", "def") == 0  # another commit: again
    assert count.read_text() == "xx"


def test_a_step_without_end_is_stopped_and_the_others_run(gpu, tmp_path):
    slow = step(gpu, "slow", "import time; time.sleep(60)", limit_s=0.5)
    after = step(gpu, "after", "print('ran')")
    assert gpu.run([slow, after], tmp_path, "abc") == 1
    told = (tmp_path / "page.md").read_text()
    assert "no end after 0.5 s" in told and "### after\n\nran" in told


def test_speeds_are_told_against_the_memorys_limit(gpu):
    table = (
        "| operation | by | ms | x |\n|---|---|---|---|\n| fill 256 blocks | kvpipe | 0.010 | 1 |"
    )
    told = gpu._against_limit(table, 3.35e12)
    moved = gpu.MOVED["fill 256 blocks"]
    assert f"{moved / 1e-5 / 1e9:.0f} | {moved / 1e-5 / 3.35e12:.0%} |" in told
    assert "not known" in gpu._against_limit(table, None)


@pytest.mark.full
def test_the_whole_script_runs_with_the_stand_in(gpu, tmp_path):
    assert gpu.main(["--stand-in", "--out", str(tmp_path)]) == 0, "\n".join(
        path.read_text()[-2000:] for path in tmp_path.glob("*.txt")
    )
    told = (tmp_path / "page.md").read_text()
    assert "stand-in: launches run on the CPU" in told and " passed" in told
    assert "| gather, whole blocks | kvpipe |" in told and told.count("digest ") == 2
