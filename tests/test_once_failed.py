"""Every command line and file that once ended in a fault of ours: a wrong request is exit code 2.

Add what tools/fuzz finds. The nightly tier runs the fuzzers themselves.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from fuzz import requests, words
from fuzz.invariants import broken
from fuzz.minimise import shortest, smallest

from kvpipe import run as run_api
from kvpipe.errors import ConfigError
from kvpipe.front.main import run

ONCE_FAILED = [
    ["layout=[[1]]"],
    ["cache=[1]"],
    ["model=[1]"],
    ["validation=${oc.select:nope}"],
    ["cache=" + "a" * 5000],
    ["cache.block_size=" + "1" * 5000],
    ["cache={a: 1}"],
    ["model=\x00"],
    ["a" * 5000],
    ["device=2xh100", "pp=0"],
    ["device=" + "1" * 5000 + "xh100"],
    ["cache.block_size=\x00"],
    ["device.name=${" + "a" * 400 + "}"],
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", ONCE_FAILED, ids=lambda line: line[0][:30])
def test_a_wrong_request_of_any_shape_is_exit_2_and_a_config_error(line, capsys):
    assert run([*line, "backend=meta", "report=none"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "fault of kvpipe" not in err and "Traceback" not in err
    assert all(len(one) < 1000 for one in err.splitlines())
    with pytest.raises(ConfigError):
        run_api([*line, "backend=meta"])


@pytest.mark.parametrize("text", ["a: {b", "a: !!python/object/apply:f ['x']", "- 1", "\x01"])
def test_a_saved_config_that_is_no_config_is_exit_2(text, capsys):
    Path("my").mkdir()
    Path("my/config.yaml").write_text(text)
    assert run(["-cp", "my"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvpipe: ") and "config" in err and "fault of kvpipe" not in err


def test_a_saved_config_that_is_no_file_is_refused_at_once(capsys):
    Path("my").mkdir()
    os.mkfifo("my/config.yaml")
    assert run(["-cp", "my"]) == 2
    assert "Cannot find primary config 'config'" in capsys.readouterr().err


def test_a_trace_that_is_a_pipe_is_not_waited_for(capsys):
    os.mkfifo("t.csv")
    assert run(["replay", "backend=meta", "trace=azure", "trace.path=t.csv"]) == 2
    assert "a FIFO, which may never end" in capsys.readouterr().err


def test_a_relative_saved_config_is_swept(tmp_path):
    assert run(["backend=meta", "report=none", "hydra.run.dir=base"]) == 0
    sweep = ["-m", "-cp", "base", "cache.block_size=16,32", "hydra.sweep.dir=s"]
    assert run(sweep) == 0 and (tmp_path / "s/1/plan.json").exists()


@pytest.mark.nightly
def test_ten_thousand_command_lines():
    seed = Random(1)
    for _ in range(10_000):
        line = words.at_random(seed)
        if words.wrong_with(line):
            least = shortest(line, lambda some: bool(words.wrong_with(some)))
            raise AssertionError(f"{least}: {words.wrong_with(least)}")


@pytest.mark.nightly
def test_ten_thousand_requests():
    seed = Random(1)
    for _ in range(10_000):
        settings = requests.at_random(seed)
        if broken(settings):
            least = smallest(settings, lambda some: bool(broken(some)))
            raise AssertionError(f"{least}: {broken(least)}")
