"""The whole command, a job of a sweep, and composing alone, in CPU time beside a fixed loop.

    pytest benchmarks/test_command.py --benchmark-enable

Aims (user and system of the whole process): the first screen of a preset on a named card within
0.35 s, a job of a sweep after its first within 5 ms. `extra_info` has the CPU time and its ratio to
the calibration loop: a second process on the same core makes both half as long again. A job makes
seven inodes: on ext4 that is a quarter of a millisecond, and several where thousands of files were
deleted seconds ago (such inodes are passed over one by one), so try `--basetemp` on a tmpfs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvpipe.request.compose import compose_request, configuration

FIRST_SCREEN = ["device=h100_80gb"]


@pytest.mark.parametrize("model", ["llama", "gemma3_27b", "jamba"])
def test_first_screen(
    benchmark,
    tmp_path,
    calibration_s: float,
    command_cpu_s: Callable[[Sequence[str], str], float],
    model: str,
) -> None:
    spent: list[float] = []

    def command() -> None:
        spent.append(command_cpu_s([*FIRST_SCREEN, f"model={model}"], str(tmp_path)))

    benchmark.pedantic(command, rounds=7, warmup_rounds=1)
    best = min(spent)
    benchmark.extra_info |= {"cpu_s": round(best, 3), "ratio": round(best / calibration_s, 2)}


def test_a_job_of_a_sweep(
    benchmark,
    tmp_path,
    calibration_s: float,
    command_cpu_s: Callable[[Sequence[str], str], float],
) -> None:
    asked = ["-m", *FIRST_SCREEN, "model=llama"]
    lengths = ",".join(str(4096 + 16 * i) for i in range(1, 1001))
    alone = min(
        command_cpu_s([*asked, "scheduler.max_model_len=4096"], str(tmp_path)) for _ in "12"
    )
    spent: list[float] = []

    def sweep() -> None:
        swept = [*asked, f"scheduler.max_model_len={lengths}"]
        spent.append(command_cpu_s(swept, str(tmp_path)))

    benchmark.pedantic(sweep, rounds=2)
    job = (min(spent) - alone) / 999
    benchmark.extra_info |= {
        "first_job_cpu_s": round(alone, 3),
        "sweep_cpu_s": round(min(spent), 2),
        "job_cpu_ms": round(1e3 * job, 2),
        "job_ratio": round(job / calibration_s, 3),
    }


def test_composing(benchmark, calibration_s: float) -> None:
    with configuration():
        benchmark(compose_request, ["model=llama", "cache=sliding"])
    benchmark.extra_info["calibration_s"] = round(calibration_s, 4)
