"""Several processes come to one plan; one that is gone is named by all others."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvpipe.errors import ConfigError
from kvpipe.processes.agree import World, merged, on_every_rank, place, world
from kvpipe.stages.profiling.base import MemoryItem, MemoryProfile, RankMemory
from kvpipe.stages.validation.base import ResolvedParallel

SCRIPT = Path(__file__).parent / "one_rank.py"
MIB = 2**20


def parallel(tp: int, pp: int = 1) -> ResolvedParallel:
    return ResolvedParallel(tp=tp, pp=pp, dcp=1)


def profile(*num_bytes: int) -> MemoryProfile:
    def item(name: str, n: int) -> MemoryItem:
        return MemoryItem(name=name, num_bytes=n, how="measured", source="here")

    ranks = tuple(
        RankMemory(
            rank=rank,
            total=item("total", 10 * n),
            requested=item("KV cache", n),
            charged=(),
            available_kv=item("KV cache", n),
        )
        for rank, n in enumerate(num_bytes)
    )
    return MemoryProfile(plugin="measured", ranks=ranks)


# --- one process ---
def test_a_process_alone_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    measured = profile(7, 7)
    assert world() is None
    assert on_every_rank(lambda: measured, parallel(2)) is measured
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world() is None


def test_each_rank_keeps_its_own_bytes_and_copies_take_the_poorest() -> None:
    answers = [{"available": n} for n in (40, 30, 20, 35)]
    agreed = merged(profile(40, 40, 40, 40), answers, ranks=4)
    assert agreed.available_kv_bytes == (40, 30, 20, 35)
    assert agreed.ranks[2].available_kv.source == "here; as rank 2 itself measured it"
    copies = merged(profile(40, 40), answers, ranks=2)
    assert copies.available_kv_bytes == (20, 30)


def test_a_process_takes_its_place_in_the_plan() -> None:
    assert [place(World(rank=r, size=4), parallel(2)) for r in range(4)] == [0, 1, 0, 1]
    assert [place(World(rank=r, size=4), parallel(2, 2)) for r in range(4)] == [0, 1, 2, 3]


def test_processes_that_are_no_multiple_of_the_ranks_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="parallel: expected .* that make 4 processes, got 3 x 1 x 1"
    ):
        place(World(rank=0, size=4), parallel(3))


def test_torch_is_asked_for_where_ranks_must_talk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(ConfigError, match="WORLD_SIZE: expected 1, or torch installed"):
        on_every_rank(lambda: profile(7, 7), parallel(2))


# --- four processes ---
def start(fates: list[tuple[int, str]]) -> list[subprocess.CompletedProcess[str]]:
    """One process a fate (bytes, what it does), as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(fates))}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(num_bytes), *([fate] if fate else [])],
            env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, (num_bytes, fate) in enumerate(fates)
    ]
    ended = []
    for process in processes:
        out, err = process.communicate(timeout=240)
        ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


@pytest.mark.full
def test_four_ranks_agree_on_the_poorest_ones_blocks() -> None:
    pytest.importorskip("torch")
    ended = start([(64 * MIB, ""), (64 * MIB, ""), (40 * MIB, ""), (64 * MIB, "")])
    assert [process.returncode for process in ended] == [0] * 4, [p.stderr for p in ended]
    plans = [json.loads(process.stdout) for process in ended]
    assert plans == [plans[0]] * 4
    assert plans[0]["memory"] == [64 * MIB, 64 * MIB, 40 * MIB, 64 * MIB]
    block = 16 * 2 * 2 * 64 * 2 * 6  # tokens, K and V, heads of a rank, head size, bytes, layers
    assert plans[0]["num_blocks"] == 40 * MIB // block
    assert plans[0]["stranded"][2] == 0 and plans[0]["stranded"][0] > 0
    assert plans[0]["allocated_here"] == 1


@pytest.mark.parametrize(
    ("gone", "fate"),
    [
        pytest.param(2, "die", marks=pytest.mark.full),
        pytest.param(0, "die", marks=pytest.mark.nightly),
        pytest.param(1, "fail", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_is_gone_is_named_by_every_other(gone: int, fate: str) -> None:
    pytest.importorskip("torch")
    fates = [(64 * MIB, fate if rank == gone else "") for rank in range(4)]
    ended = start(fates)
    for rank, process in enumerate(ended):
        assert process.returncode != 0
        if rank != gone:
            assert f"rank {gone} " in process.stderr, process.stderr
            assert "Traceback" not in process.stderr
            seconds = re.search(r"seconds: ([\d.]+)", process.stderr)
            assert seconds is not None and float(seconds[1]) < 30


@pytest.mark.nightly
def test_torchrun_prints_one_report_and_every_process_ends_well(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    asked = ["-m", "kvpipe", "model=pythia_70m", "parallel.tensor_parallel_size=4"]
    asked += ["report=json", "scheduler.max_model_len=64", "cache.kv_cache_memory_bytes=8MiB"]
    asked += ["backend=torch", f"hydra.run.dir={tmp_path / 'out'}"]
    asked += ["command.document=full"]  # a rank each, not "four times this"
    runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    ended = subprocess.run([*runner, *asked], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["verify"]["passed"]
    assert len(document["plan"]["ranks"]) == 4
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file()) == [
        "memory_map.svg",
        "plan.json",
        "result.json",
    ]
