"""A disk that is full at any byte: nothing is half, nothing that was there is lost, and the file
that could not be written is named."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kvpipe.front.main as front
from kvpipe.files.atomic import write_atomic
from kvpipe.files.named import in_words, named

ASKED = ["backend=meta", "report=none"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """The system refuses to write more into a file, at this very byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def exit_code(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the whole program, in this process."""
    monkeypatch.setattr("sys.argv", ["kvpipe", *arguments])
    monkeypatch.setattr(front, "_stdout_to_nowhere", lambda: None)  # stdout is the test's
    with pytest.raises(SystemExit) as end:
        front.main()
    return int(end.value.code or 0)


def test_a_file_is_whole_or_what_it_was(tmp_path):
    path = tmp_path / "f"
    write_atomic(path, "before")
    for limit in range(0, 40, 3):
        with files_of_at_most(limit), pytest.raises(OSError, match="File too large") as error:
            write_atomic(path, "x" * 40)
        assert error.value.filename == str(path) and in_words(error.value).startswith(str(path))
        assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "limit",
    [0, 3000, *(pytest.param(n, marks=pytest.mark.full) for n in (60, 1000, 5000, 9000, 20000))],
)
def test_a_run_names_what_could_not_be_written_and_leaves_nothing_half(
    limit, capsys, monkeypatch, tmp_path
):
    with files_of_at_most(limit):
        code = exit_code([*ASKED, "hydra.run.dir=out"], monkeypatch)
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    for path in left:
        assert path.suffix != ".json" or json.loads(path.read_text()), path
    err = capsys.readouterr().err
    if code == 0:
        assert (tmp_path / "out/result.json").exists()
    else:
        assert code == 3 and "out/" in err and "File too large" in err and "stdout" not in err
        assert not (tmp_path / "out/result.json").exists()
        assert not [path for path in left if path.name.startswith(".")]


@pytest.mark.parametrize("limit", [2500, pytest.param(12000, marks=pytest.mark.full)])
def test_a_sweep_on_a_full_disk_ends_with_what_is_done(limit, capsys, monkeypatch, tmp_path):
    asked = ["-m", "cache.block_size=16,32", *ASKED, "hydra.sweep.dir=s"]
    with files_of_at_most(limit):
        code = exit_code(asked, monkeypatch)
    out, err = capsys.readouterr()
    said = out + err
    assert code == 3 and "s/" in said and "File too large" in said and "Traceback" not in said
    assert exit_code(asked, monkeypatch) == 0  # there is room again: the same sweep goes on
    assert "2 jobs, 2 fit" in capsys.readouterr().out and not (tmp_path / "s-1").exists()


def test_stdout_is_named_when_it_is_stdout():
    with pytest.raises(OSError, match="No space") as error, named("stdout"):
        raise OSError(28, "No space left on device")
    assert in_words(error.value) == "stdout: No space left on device"
    with pytest.raises(FileNotFoundError, match="there") as error, named("stdout"):
        open("there")  # noqa: SIM115
    assert error.value.filename == "there"


def test_an_output_folder_with_odd_characters(tmp_path):
    assert front.run([*ASKED, "hydra.run.dir='a b=c,d'"]) == 0
    assert (tmp_path / "a b=c,d/result.json").exists()
    sweep = ["-m", "cache.block_size=16,32", *ASKED, "hydra.sweep.dir='e=f (g)'"]
    assert front.run(sweep) == 0 and (tmp_path / "e=f (g)/1/result.json").exists()


def test_a_model_folder_with_an_equals_sign_is_a_word(tmp_path, capsys):
    (tmp_path / "a b=c,d").mkdir()
    assert front.run(["./a b=c,d", *ASKED]) == 2
    assert "config.json" in capsys.readouterr().err
