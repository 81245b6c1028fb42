"""A disk that is full at any byte: nothing is half, nothing that was there is lost, and the file
that could not be written is named."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

import kvpipe.front.main as front
from kvpipe.files.atomic import write_atomic
from kvpipe.files.folders import new_folder
from kvpipe.files.named import in_words, named
from kvpipe.files.regular import open_regular

ASKED = ["backend=meta", "report=none"]
full = pytest.mark.full


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


def assert_nothing_is_half(folder: Path, code: int, said: str, reason: str) -> None:
    """After a run in `folder` that ended so: files are whole, and what could not be is named."""
    left = [path for path in folder.rglob("*") if path.is_file()]
    for path in left:
        assert path.suffix != ".json" or json.loads(path.read_text()), path
        assert path.suffix not in (".svg", ".yaml") or path.read_text().endswith("\n"), path
    assert not [path for path in left if path.name.startswith(".")]
    finished = [path for path in left if path.name == "result.json"]
    assert (code, len(finished)) in ((0, 1), (3, 0)), said
    if code:
        assert reason in said and "outputs/" in said and "stdout" not in said


@pytest.mark.parametrize(
    "limit",
    [3000, *(pytest.param(n, marks=full) for n in (0, 60, 1000, 5000, 9000, 20000))],
)
def test_a_run_names_what_could_not_be_written_and_leaves_nothing_half(
    limit, capsys, monkeypatch, tmp_path
):
    with files_of_at_most(limit):
        code = exit_code(ASKED, monkeypatch)
    assert_nothing_is_half(tmp_path, code, capsys.readouterr().err, "File too large")


class Failing:
    """A module as `files.atomic` uses it: its call number `at` of those that write acts."""

    def __init__(self, module: ModuleType, calls: list[str], at: int, act: Callable[[], None]):
        self.module, self.calls, self.at, self.act = module, calls, at, act

    def __getattr__(self, name: str) -> object:
        found = getattr(self.module, name)
        if name not in ("open", "fdopen", "replace"):
            return found

        def call(*arguments: object, **more: object) -> object:
            self.calls.append(name)
            if len(self.calls) == self.at:
                self.act()
            return found(*arguments, **more)

        return call


def acting_at(monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], None]) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr("kvpipe.files.atomic.os", Failing(os, calls, at, act))
    return calls


def full_disk() -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=full)])
def test_a_disk_that_is_full_at_any_call_leaves_nothing_half(step, capsys, monkeypatch, tmp_path):
    """Every call by which a run writes fails once, and then it runs through."""
    for at in count(1, step):
        folder = tmp_path / str(at)
        folder.mkdir()
        monkeypatch.chdir(folder)
        calls = acting_at(monkeypatch, at, full_disk)
        code = exit_code(ASKED, monkeypatch)
        assert_nothing_is_half(folder, code, capsys.readouterr().err, "No space left")
        assert (code == 0) == (len(calls) < at)
        if code == 0:
            break
    assert len(calls) >= 15  # three a file


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=full)])
def test_a_run_that_is_killed_at_any_call_leaves_no_half_file(step, monkeypatch, tmp_path):
    """Hydra's own files (.hydra/) included: what was renamed into its place is whole."""
    at, alive = 1, False
    while not alive:
        folder = tmp_path / str(at)
        folder.mkdir()
        child = os.fork()
        if not child:
            os.chdir(folder)
            acting_at(monkeypatch, at, killed)
            os._exit(front.run(ASKED))
        _, status = os.waitpid(child, 0)
        alive = not os.WIFSIGNALED(status)
        for path in (path for path in folder.rglob("[!.]*") if path.is_file()):
            assert path.suffix != ".json" or json.loads(path.read_text()), path
            assert path.read_text().endswith("\n"), path
        at += step
    assert at > 15


@pytest.mark.parametrize("limit", [pytest.param(n, marks=full) for n in (2500, 12000)])
def test_a_sweep_on_a_full_disk_ends_with_what_is_done(limit, capsys, monkeypatch, tmp_path):
    asked = ["-m", "cache.block_size=16,32", *ASKED, "hydra.sweep.dir=s"]
    with files_of_at_most(limit):
        code = exit_code(asked, monkeypatch)
    out, err = capsys.readouterr()
    said = out + err
    assert code == 3 and "s/" in said and "File too large" in said and "Traceback" not in said
    assert exit_code(asked, monkeypatch) == 0  # there is room again: the same sweep goes on
    assert "2 jobs, 2 fit" in capsys.readouterr().out and not (tmp_path / "s-1").exists()


# --- a file system of 1 MB ------------------------------------------------------------
@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if os.getuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs root, and a kernel that mounts a file system of 1 MB")
    monkeypatch.chdir(place)
    yield place
    monkeypatch.chdir(tmp_path)
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, but_pages: int) -> None:
    """The disk has so many pages left. What was there stays, and so does the precious file."""
    room = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * max(0, room.f_bavail - but_pages) * room.f_bsize)


@pytest.mark.parametrize("pages", [4, *(pytest.param(n, marks=full) for n in range(40) if n != 4)])
def test_a_file_system_that_is_full_at_any_page_loses_nothing(
    pages, small_disk, capsys, monkeypatch
):
    (small_disk / "precious").write_text("precious")
    fill(small_disk, pages)
    code = exit_code(ASKED, monkeypatch)
    assert_nothing_is_half(small_disk, code, capsys.readouterr().err, "No space left")
    assert (small_disk / "precious").read_text() == "precious"
    (small_disk / "filler").unlink()
    assert exit_code(ASKED, monkeypatch) == 0


@full
@pytest.mark.parametrize("pages", [6, 9, 12, 20])
def test_a_sweep_goes_on_once_there_is_room(pages, small_disk, capsys, monkeypatch):
    asked = ["-m", "cache.block_size=16,32", *ASKED, "hydra.sweep.dir=s"]
    fill(small_disk, pages)
    assert exit_code(asked, monkeypatch) == 3
    out, err = capsys.readouterr()
    assert "No space left" in out + err and "Traceback" not in err
    (small_disk / "filler").unlink()
    assert exit_code(asked, monkeypatch) == 0
    assert "2 jobs, 2 fit" in capsys.readouterr().out


# --- folders ------------------------------------------------------------
def test_runs_that_start_at_once_have_a_folder_each(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_folder(tmp_path / "out"), range(8)))
    assert len(set(folders)) == 8 and all(folder.is_dir() for folder in folders)


@full
def test_whole_runs_into_one_folder_at_once_are_whole(tmp_path):
    children = []
    for _ in range(4):
        if not (child := os.fork()):
            os._exit(front.run([*ASKED, "hydra.run.dir=out"]))
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    folders = sorted(tmp_path.glob("out*"))
    assert [folder.name for folder in folders] == ["out", "out-1", "out-2", "out-3"]
    for folder in folders:
        assert_nothing_is_half(folder, 0, "", "")


def test_stdout_is_named_when_it_is_stdout():
    with pytest.raises(OSError, match="No space") as error, named("stdout"):
        raise OSError(28, "No space left on device")
    assert in_words(error.value) == "stdout: No space left on device"
    with pytest.raises(FileNotFoundError, match="there") as error, named("stdout"):
        open("there")  # noqa: SIM115
    assert error.value.filename == "there"


@pytest.mark.parametrize("line", [["--version"], ["--help"], ["--help", "model"]])
def test_stdout_is_named_by_every_word_that_prints(line, monkeypatch):
    """With PYTHONUNBUFFERED a full disk is met at the first write, not at the last flush."""
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("sys.stdout", TextIOWrapper(full, write_through=True))
        with pytest.raises(OSError, match="No space") as error:
            front.run(line)
    assert error.value.filename == "stdout"


def test_a_file_that_cannot_be_read_to_its_end_is_named():
    """Opened, and then an error of its disk: /proc/self/mem has one at its first byte."""
    for read in (lambda file: file.read(), lambda file: file.read(10), lambda file: list(file)):
        with open_regular(Path("/proc/self/mem")) as file, pytest.raises(OSError) as error:
            read(file)
        assert str(error.value.filename) == "/proc/self/mem"


def test_an_output_folder_with_odd_characters(tmp_path):
    assert front.run([*ASKED, "hydra.run.dir='a b=c,d'"]) == 0
    assert (tmp_path / "a b=c,d/result.json").exists()


@full
def test_a_sweeps_folder_with_odd_characters(tmp_path):
    sweep = ["-m", "cache.block_size=16,32", *ASKED, "hydra.sweep.dir='e=f (g)'"]
    assert front.run(sweep) == 0 and (tmp_path / "e=f (g)/1/result.json").exists()


def test_a_model_folder_with_an_equals_sign_is_a_word(tmp_path, capsys):
    (tmp_path / "a b=c,d").mkdir()
    assert front.run(["./a b=c,d", *ASKED]) == 2
    assert "config.json" in capsys.readouterr().err
