"""Where a run lives: no home, a home that cannot be written, folders that are gone or of others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpipe.front.main import run

ASKED = ["backend=meta", "report=none"]
full = pytest.mark.full


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


@pytest.fixture(params=[None, "/proc/nope", "a file"])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a file").write_text("")
    if request.param is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", os.path.abspath(request.param))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["doctor", "sample"],
        pytest.param(["find", "model=gpt2", "want.length=64"], marks=full),
        pytest.param(["replay", "trace=azure_code_sample", "trace.max_requests=3"], marks=full),
        pytest.param(["-m", "cache.block_size=16,32"], marks=full),
    ],
    ids=lambda words: " ".join(words[:1]),
)
def test_no_command_needs_a_home(words, home):
    assert run([*words, *ASKED]) in (0, 1)


def test_a_model_in_a_home_that_is_not_there_is_one_line(home, capsys):
    for place in ("~/m", "~nobody-at-all/m", "~/m.gguf"):
        assert run([place, *ASKED]) == 2
        err = capsys.readouterr().err
        assert err.startswith("kvpipe: ") and "fault of kvpipe" not in err


@full
def test_compiled_kernels_need_a_folder_and_say_which(home, capsys):
    assert run(["model=gpt2", "backend=host", "report=none", "scheduler.max_model_len=16"]) in (
        0,
        2,
    )
    err = capsys.readouterr().err
    assert not err or "kvpipe" in err and "fault of kvpipe" not in err


def test_an_outputs_that_is_a_file_is_named(capsys):
    Path("outputs").write_text("mine")
    assert run(ASKED) == 2
    assert "hydra.run.dir: expected a folder that can be made" in capsys.readouterr().err
    assert Path("outputs").read_text() == "mine"


def test_a_folder_that_is_gone_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(ASKED) == 2
    err = capsys.readouterr().err
    assert "outputs/" in err and "No such file or directory" in err


def test_a_folder_that_is_gone_is_told_once_where_hydra_composes(tmp_path, capsys, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run([*ASKED, "+a.b=1"]) == 2
    err = capsys.readouterr().err
    assert err == (
        "kvpipe: current folder: expected one that is there, got No such file or directory\n"
    )


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", str(place)]
    if os.getuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs root, and a kernel that mounts a file system that cannot be written")
    monkeypatch.chdir(place)
    yield place
    monkeypatch.chdir(tmp_path)
    subprocess.run(["umount", str(place)], check=True)


def test_a_file_system_that_cannot_be_written_is_said(read_only, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(read_only))
    assert run(ASKED) == 2
    assert "Read-only file system" in capsys.readouterr().err
