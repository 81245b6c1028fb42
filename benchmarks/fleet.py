"""Candidates and replayed requests a second of CPU, beside the peers that pip installs.

    python benchmarks/fleet.py [PEERS]

PEERS: an environment with aiconfigurator==0.12.0 and ridgepoint==0.1.2; what is missing is skipped
by name. Each program runs alone, from its start to its end, all in one run; seconds are of CPU,
the least of ROUNDS (the slow one: once). What the candidates of each are differs, and is printed.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROUNDS = 3
MODEL, LENGTH = "llama", 4500
RIDGEPOINT = """
import itertools, ridgepoint
made = 0
for _ in range(10):
    for n, ctx, kv in itertools.product((1, 2, 4, 8), range(1024, 9216, 1024), ("fp16", "fp8")):
        ridgepoint.fit("llama-3-8b", "h100-80gb", ctx=ctx, count=n, kv_cache_dtype=kv, as_json=True)
        made += 1
print(made)
"""


@dataclass(frozen=True, kw_only=True)
class Race:
    """run: what is started in a folder. made: how many of what it made, from its folder and what
    it printed. rounds: how often."""

    name: str
    of: str
    run: list[str]
    made: Callable[[Path, str], int]
    rounds: int = ROUNDS


def races(peers: Path | None) -> list[Race]:
    kvpipe = [sys.executable, "-m", "kvpipe"]
    asked = [f"model={MODEL}", "engine=vllm", "hydra.run.dir=out", "report=none"]
    found = [
        Race(
            name="kvpipe find",
            of="servers planned: TP x PP x cache type x batch x sequences, blocks and all",
            run=[
                *(*kvpipe, "find", *asked, "want.device=[h200]"),
                *("want.requests=500", f"want.length={LENGTH}", "want.caches=[auto,fp8]"),
                "want.batches=[1024,2048,4096,8192,12288,16384,24576,32768]",
                "want.seqs=[16,32,64,128,256,384,512,1024]",
            ],
            made=lambda folder, _: int(json.loads((folder / "out/find.json").read_text())["tried"]),
        ),
        Race(
            name="kvpipe replay",
            of="requests served step by step through the block manager",
            run=[
                *(*kvpipe, "replay", *asked, "device=h200", "trace=synthetic"),
                *("trace.max_requests=4000", "trace.requests_per_second=20"),
                *("trace.efficiency=0.5",),
            ],
            made=lambda folder, _: int(
                json.loads((folder / "out/replay.json").read_text())["counts"]["finished"]
            ),
        ),
    ]
    if peers and (peers / "bin/aiconfigurator").exists():
        found.append(aiconfigurator(peers / "bin/aiconfigurator"))
    if peers and list(peers.glob("lib/*/site-packages/ridgepoint")):
        found.append(ridgepoint(peers / "bin/python"))
    return found


def aiconfigurator(program: Path) -> Race:
    return Race(
        name="aiconfigurator 0.12.0 default",
        of="configurations in its tables: TP x PP x batch, together and apart, one cache type",
        run=[
            *(str(program), "cli", "default", "--model-path", "meta-llama/Meta-Llama-3.1-8B"),
            *("--system", "h200_sxm", "--total-gpus", "8", "--backend", "vllm"),
            *("--isl", "4000", "--osl", "500", "--ttft", "1000", "--tpot", "40"),
            *("--save-dir", "out"),
        ],
        made=lambda folder, _: sum(_rows(path) for path in folder.rglob("*pareto*.csv")),
        rounds=1,
    )


def ridgepoint(python: Path) -> Race:
    return Race(
        name="ridgepoint 0.1.2 fit",
        of="fits of one card type: cards x context x cache type, in one process, no blocks",
        run=[str(python), "-c", RIDGEPOINT],
        made=lambda _, printed: int(printed.split()[-1]),
    )


def _rows(path: Path) -> int:
    with path.open(newline="") as file:
        return max(0, sum(1 for _ in csv.reader(file)) - 1)


def measured(race: Race) -> tuple[int, float]:
    """What it made, and the least seconds of CPU."""
    seconds, made = [], 0
    for _ in range(race.rounds):
        with TemporaryDirectory() as folder:
            before = _cpu_seconds()
            done = subprocess.run(
                race.run, cwd=folder, capture_output=True, text=True, env=dict(os.environ)
            )
            seconds.append(_cpu_seconds() - before)
            if done.returncode != 0:
                raise RuntimeError(f"{race.name}: {done.stderr.strip().splitlines()[-1:]}")
            made = race.made(Path(folder), done.stdout)
    return made, min(seconds)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(peers: Path | None) -> None:
    print("| program | made | CPU s | a second of CPU | of what |\n|---|---:|---:|---:|---|")
    names = []
    for race in races(peers):
        made, seconds = measured(race)
        names.append(race.name)
        row = f"{made:,} | {seconds:.2f} | {made / seconds:,.0f} | {race.of}"
        print(f"| {race.name} | {row} |", flush=True)
    for name, why in (
        ("aiconfigurator", "not installed"),
        ("ridgepoint", "not installed"),
        ("vidur", "its wheel has no profile of a card, without which it predicts no step"),
        ("kvfit, vramscout, llm-d-planner", "plan one card type a call, from the Hub"),
    ):
        if not any(each.startswith(name) for each in names):
            print(f"skipped: {name} ({why})")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None)
