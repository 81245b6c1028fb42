"""Files of any size, and files without an end: read in constant memory, or refused in a line.

Memory is measured in a process of its own, against the same process on a small file.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from kvpipe.errors import ConfigError
from kvpipe.front.main import run
from kvpipe.logs.reading import read_file
from kvpipe.simulation.traces import base as traces
from kvpipe.simulation.traces.azure import PLUGIN as Azure

LINES = "INFO Available KV cache memory: {} GiB\n"
NOISE = f"INFO {'request finished ' * 300}\n"  # a server that runs says mostly this
SPARE_MIB = 64  # of a process: what a large file may take more than a small one

MEASURED = """
import resource, sys
from kvpipe.front.main import run
code = run(sys.argv[1:])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log_of(size: int, path: Path) -> Path:
    """A log of that many bytes: figures first and last, noise, and a hole, which reads as one line
    of zeros without an end."""
    with path.open("w") as file:
        file.write(LINES.format(9) + NOISE * 20)
        file.flush()
        os.truncate(path, size)
        file.seek(size)
        file.write("\n" + NOISE + LINES.format(4))
    return path


def measured(arguments: list[str], stdin: object = None) -> tuple[int, int]:
    """(exit code, MiB at most) of a process of its own."""
    command = [sys.executable, "-c", MEASURED, *arguments, "backend=meta", "report=none"]
    done = subprocess.run(command, stdin=stdin, capture_output=True, text=True)  # type: ignore[call-overload]
    code, most = done.stderr.split()[-2:]
    return int(code), int(most)


def test_memory_does_not_grow_with_a_log(tmp_path):
    read_file(str(log_of(2**16, tmp_path / "warm.log")))
    tracemalloc.start()
    log = read_file(str(log_of(3 * 2**22, tmp_path / "x.log")))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [figure.num_bytes for figure in log.per_rank("available_kv")] == [4 * 2**30]
    assert most < 2**22


@pytest.mark.full
@pytest.mark.parametrize("size", [100 * 2**20, pytest.param(3 * 2**30, marks=pytest.mark.nightly)])
def test_a_log_of_three_gigabytes_takes_the_memory_of_a_small_one(size, tmp_path):
    asked = ["model=llama", "device=h100_80gb", "profiling=log", "scheduler.max_model_len=1024"]
    small, large = log_of(2**20, tmp_path / "small"), log_of(size, tmp_path / "large")
    code, least = measured([*asked, f"profiling.path={small}"])
    assert code == 0
    code, most = measured([*asked, f"profiling.path={large}"])
    assert code == 0 and most < least + SPARE_MIB, (least, most)


@pytest.mark.nightly
def test_three_gigabytes_that_are_piped_in_take_no_more_memory(tmp_path):
    """Generated as they are read; they pass through a file that is removed."""
    asked = ["doctor", "-", "model=llama", "device=h100_80gb"]
    _, least = measured(asked, stdin=log_of(2**20, tmp_path / "small").open())
    noise = f"{{ echo '{LINES.format(4).strip()}'; head -c 3000000000 /dev/zero | tr '\\0' x; }}"
    with subprocess.Popen(noise, shell=True, stdout=subprocess.PIPE) as stream:
        code, most = measured(asked, stdin=stream.stdout)
    assert code == 0 and most < least + SPARE_MIB, (least, most)


def test_a_log_that_grows_is_read_to_the_size_it_had(tmp_path, capsys):
    """A writer that never stops: the reader does."""
    path, stop = log_of(2**18, tmp_path / "x.log"), threading.Event()

    def write() -> None:
        with path.open("a") as file:
            while not stop.wait(0.001):
                file.write(NOISE)
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        asked = ["device=h100_80gb", "profiling=log", f"profiling.path={path}", "report=none"]
        assert run(["model=llama", "backend=meta", "scheduler.max_model_len=1024", *asked]) == 0
    finally:
        stop.set()
        writer.join()


# --- traces ---
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:03.9799600,4808,10\n"


def trace(path: Path, **changes: object) -> list[traces.TraceRequest]:
    options = {
        "name": "azure", "path": str(path), "max_requests": None, "arrivals": "trace",
        "arrival_rate_scale": 1.0, "step_seconds": 0.01, "prefill_tokens_per_second": 1e4,
        "acceptance_rate": 0.0, "efficiency": 1.0,
    }  # fmt: skip
    return Azure(Azure.Options(**(options | changes))).requests()


def test_a_trace_of_more_requests_than_are_kept_says_how_to_take_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_REQUESTS", 10)
    path = tmp_path / "t.csv"
    path.write_text(HEADER + ROW * 11)
    with pytest.raises(ConfigError, match=r"at most 10 requests.*trace.max_requests=N takes"):
        trace(path)
    assert len(trace(path, max_requests=11)) == 11
    path.write_text(HEADER + ROW * 10)
    assert len(trace(path)) == 10


def test_a_packed_trace_of_empty_lines_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_LINES", 1000)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "\n" * 10**6).encode()))
    with pytest.raises(ConfigError, match="more than 1,000 lines"):
        trace(path)


def test_a_trace_that_grows_is_read_to_the_size_it_had(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + ROW * 3)
    parse = Azure.parse

    def growing(self, line):
        with path.open("a") as file:
            file.write(ROW)
        return parse(self, line)

    monkeypatch.setattr(Azure, "parse", growing)
    assert len(trace(path)) == 3


# --- every reader alike ---
DEEP = "[" * 100_000
READERS = {
    "config.json": ["./m"],
    "model.safetensors.index.json": ["./m"],
    "hf_quant_config.json": ["./m"],
    "trace.jsonl": ["replay", "trace=mooncake", "trace.path=m/trace.jsonl"],
    "config.yaml": ["-cp", "m"],
    "x.log": ["profiling=log", "profiling.path=m/x.log", "device=h100_80gb"],
    "pasted": ["doctor", "m/pasted"],
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("shape", ["deep", pytest.param("50 MB", marks=pytest.mark.full)])
def test_every_reader_refuses_deep_and_large_files_alike(name, shape, capsys, tmp_path):
    (tmp_path / "m").mkdir()
    if name != "config.yaml":
        (tmp_path / "m/config.json").write_text(json.dumps({"model_type": "llama"}))
    text = DEEP if shape == "deep" else f'{{"a": "{"x" * (50 * 2**20)}"}}'
    (tmp_path / "m" / name).write_text(text)
    assert run([*READERS[name], "report.name=none"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvpipe: ") and "fault of kvpipe" not in err and len(err) < 5000
