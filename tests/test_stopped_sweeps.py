"""A sweep that is stopped keeps what is done, says so, and goes on from there; no file is half."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kvpipe.front.jobs_here as jobs_here
from kvpipe.errors import ConfigError
from kvpipe.front.main import run
from kvpipe.front.sweep_folder import in_a_shell, sweep_folder

JOBS = ["-m", "cache.block_size=16,32,48", "backend=meta", "hydra.sweep.dir=s"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def counted(monkeypatch: pytest.MonkeyPatch, kill_before: int, number: int) -> list[str]:
    """The jobs that start from now on; this process is sent a signal before one of them."""
    started: list[str] = []
    job = jobs_here.run_one_here

    def counting(folder, words, at):
        started.append(dict(word.split("=") for word in words)["cache.block_size"])
        if len(started) == kill_before:
            os.kill(os.getpid(), number)
        return job(folder, words, at)

    monkeypatch.setattr(jobs_here, "run_one_here", counting)
    return started


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.full)],
)
def test_a_signal_ends_a_sweep_with_the_table_and_the_same_command_goes_on(
    number, code, capsys, folder, monkeypatch
):
    started = counted(monkeypatch, 2, number)
    assert run(JOBS) == code
    out, err = capsys.readouterr()
    assert "3 jobs, 1 fit" in out and out.count("not started") == 2 and "lost" not in out
    assert f"stopped by {number.name}; the same command with hydra.sweep.dir=" in err
    assert (folder / "s/sweep.csv").read_text().count(",fits,0,") == 1
    kept = (folder / "s/0/plan.json").read_text()
    assert run(JOBS) == 0
    out, err = capsys.readouterr()
    assert "3 jobs, 3 fit" in out and "1 job done, 2 to go" in err
    assert started == ["16", "32", "32", "48"]
    assert (folder / "s/0/plan.json").read_text() == kept
    assert [path.name for path in folder.iterdir()] == ["s"]


def test_a_folder_of_other_jobs_or_of_all_jobs_is_left_alone(folder):
    jobs = [["a=1"], ["a=2"]]
    with sweep_folder(folder / "s", jobs) as first:
        (first / "0").mkdir()
        (first / "0/result.json").write_text('{"status": "fits", "exit_code": 0}')
    with sweep_folder(folder / "s", [["a=1"]]) as other:
        assert other == folder / "s-1"
    with sweep_folder(folder / "s", jobs) as again:
        assert again == first
        (first / "1").mkdir()
        (first / "1/result.json").write_text('{"status": "does_not_fit", "exit_code": 1}')
    with sweep_folder(folder / "s", jobs) as new:
        assert new == folder / "s-2"


def test_one_process_at_a_time_runs_a_sweep(capsys, folder):
    jobs: list[list[str]] = [[]]
    refused = pytest.raises(ConfigError, match="no other process")
    with sweep_folder(folder / "s", jobs), refused, sweep_folder(folder / "s", jobs):
        raise AssertionError("two at once")


def test_what_to_type_to_go_on_is_what_a_shell_takes(folder):
    assert in_a_shell(Path("outputs/a-1")) == "hydra.sweep.dir=outputs/a-1"
    (word,) = shlex.split(in_a_shell(Path("e='f (g)")))
    assert word == r"hydra.sweep.dir='e=\'f (g)'"


@pytest.mark.parametrize("name", ["sweep.json", ".lock", "0/result.json"])
def test_what_somebody_put_into_the_folder_is_not_waited_for(name, folder):
    """A FIFO in the place of a file: a new folder, or a word, at once."""
    jobs = [["a=1"], ["a=2"]]
    with sweep_folder(folder / "s", jobs):
        (folder / "s/0").mkdir()
    (folder / "s" / name).unlink(missing_ok=True)
    os.mkfifo(folder / "s" / name)
    if name == ".lock":
        with pytest.raises(OSError, match="lock"), sweep_folder(folder / "s", jobs):
            raise AssertionError("a lock that is none")
        return
    with sweep_folder(folder / "s", jobs) as ours:
        assert ours == folder / ("s-1" if name == "sweep.json" else "s")


def whole(path: Path) -> bool:
    """Whether a file is as its writer left it: JSON and YAML load, pictures and tables end."""
    import yaml

    text = path.read_text()
    if path.suffix == ".json":
        return bool(json.loads(text))
    if path.suffix == ".yaml":
        return bool(yaml.safe_load(text)) and text.endswith("\n")
    return text.endswith(("</svg>\n", "\n")) or path.name == ".lock"


@pytest.mark.full
def test_killed_at_any_moment_nothing_is_half_and_the_sweep_goes_on(folder):
    seed = random.Random(7)
    command = [sys.executable, "-m", "kvpipe", *JOBS]
    for _ in range(12):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seed.uniform(0.8, 4.0))
        process.kill()
        process.wait()
        for path in (folder / "s").rglob("*"):
            hidden = path.name.startswith(".") and path.suffix not in (".lock", "")
            assert path.is_dir() or hidden or whole(path), path
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "3 jobs, 3 fit" in done.stdout, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_sweep_ends_within_a_moment_of_a_signal(launcher, folder):
    """No clock: the process is given a minute, and its table shows that jobs were left out."""
    many = "cache.block_size=" + ",".join(str(16 * n) for n in range(1, 200))
    command = [sys.executable, "-m", "kvpipe", "-m", many, "backend=meta", "hydra.sweep.dir=s"]
    process = subprocess.Popen(
        [*command, f"hydra/launcher={launcher}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not (folder / "s/0/result.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143 and b"lost" in out and b"Traceback" not in err


def test_a_signal_while_modules_are_loaded_is_a_line(monkeypatch, capsys):
    from kvpipe.__main__ import main

    class Stopped:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "kvpipe.front.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "kvpipe.front.main")
    monkeypatch.setattr(sys, "meta_path", [Stopped(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "kvpipe: stopped by SIGINT\n"
