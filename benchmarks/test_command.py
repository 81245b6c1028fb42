"""The whole command, and composing alone, in CPU time beside a fixed loop.

    pytest benchmarks/test_command.py --benchmark-enable

Aim: a plan-only command with a preset and report=json under 0.6 s of CPU (user and system of the
whole process). `extra_info` has the CPU seconds and their ratio to the calibration loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvpipe.request.compose import compose_request, configuration

PLAN_ONLY = ["report=json", "backend=meta"]


@pytest.mark.parametrize("model", ["llama", "gemma3_27b", "jamba"])
def test_plan_only_command(
    benchmark,
    tmp_path,
    calibration_s: float,
    command_cpu_s: Callable[[Sequence[str], str], float],
    model: str,
) -> None:
    spent: list[float] = []

    def command() -> None:
        spent.append(command_cpu_s([*PLAN_ONLY, f"model={model}"], str(tmp_path)))

    benchmark.pedantic(command, rounds=7, warmup_rounds=1)
    best = min(spent)
    benchmark.extra_info |= {"cpu_s": round(best, 3), "ratio": round(best / calibration_s, 2)}


def test_composing(benchmark, calibration_s: float) -> None:
    with configuration():
        benchmark(compose_request, ["model=llama", "cache=sliding"])
    benchmark.extra_info["calibration_s"] = round(calibration_s, 4)
