#!/usr/bin/env python
"""What a block table costs a running vLLM in every step, and steps on kvpipe's plans beside the
engine's own: engines of one process stepped in turn, CPU time, 95% intervals.

python tools/live/step_cost.py vllm-0.32.0 tables         # 16 layers in 2, 4, 8 and 16 tables
python tools/live/step_cost.py vllm-0.32.0 plans          # every model where vLLM pads

The tables it prints go to docs/vllm.md by hand, with their date.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.environments import missing  # noqa: E402
from tools.live.model_files import CONTEXT  # noqa: E402
from tools.live.models import EVEN, MODELS  # noqa: E402
from tools.live.paired import change_percent, mean_milliseconds, slope_microseconds  # noqa: E402
from tools.live.plugin import installed_in  # noqa: E402
from tools.live.proof import PADDED, answered, arguments_of  # noqa: E402

Json = dict[str, Any]
PROBE = Path(__file__).with_name("step_probe.py")
STEPS = 300
SIZES = (8, 4, 2, 1)  # layers a table, of 8 windows and 8 full
OPTIMAL = {"grouping": "optimal"}
# By the price of a table: the default, and what one costs of a step of a model as small as these.
ASKED: dict[str, Json] = {
    "the engine's": {},
    "optimal": {"kvpipe": OPTIMAL},
    "optimal, a table 1.5%": {"kvpipe": {**OPTIMAL, "price_of_a_group": 0.015}},
}


def case_of(folder: Path, ways: list[Json], running: Sequence[int]) -> Json:
    return {
        # Any load fits in so much: all ways take the same steps.
        "arguments": arguments_of(folder, 512 * 2**20, CONTEXT),
        "ways": ways,
        "running": list(running),
        "prompt": 100,
        "steps": STEPS,
    }


def tables(name: str, scratch: Path) -> Iterator[str]:
    """Microseconds of one table more, by requests that run."""
    ways = [{"name": str(size), "layers_per_group": size} for size in SIZES]
    found = answered(name, PROBE, case_of(EVEN.write(scratch), ways, (1, 8, 32)), "", scratch)
    sizes = found["tables"]
    heads = " | ".join(f"{number} tables, ms" for number in sizes.values())
    yield f"| requests that run | {heads} | each table more, us |"
    yield f"|---:|{'---:|' * len(sizes)}---|"
    for running, steps in found["loads"].items():
        means = " | ".join(f"{mean_milliseconds(steps, way):.2f}" for way in sizes)
        yield f"| {running} | {means} | {slope_microseconds(steps, sizes).text(0, '')} |"


def plans(name: str, scratch: Path) -> Iterator[str]:
    """CPU time of a step on each plan, beside the engine's own."""
    yield "| model | plan | tables | tokens | ms a step | beside the engine's, 95% interval |"
    yield "|---|---|---:|---:|---:|---|"
    for model in PADDED:
        yield from _plans_of(name, model, scratch)


def _plans_of(name: str, model: str, scratch: Path) -> Iterator[str]:
    ways = [
        {"name": way, "arguments": {"additional_config": config}} for way, config in ASKED.items()
    ]
    case = case_of(MODELS[model].write(scratch), ways, (8,))
    found = answered(name, PROBE, case, installed_in(scratch / "site"), scratch)
    (steps,) = found["loads"].values()
    for way in ASKED:
        beside = "" if way == ways[0]["name"] else _beside(steps, ways[0]["name"], way)
        cells = [f"{found['tables'][way]}", f"{found['printed'][way]:,}"]
        cells.append(f"{mean_milliseconds(steps, way):.2f}")
        yield f"| {model} | {way} | {' | '.join(cells)} | {beside} |"


def _beside(steps: list[Json], before: str, after: str) -> str:
    return change_percent(steps, before, after).text(2, "%")


def main(argv: Sequence[str]) -> int:
    if len(argv) != 2 or argv[1] not in ("tables", "plans"):
        print(f"expected an environment and tables or plans, got {' '.join(argv) or 'nothing'}")
        return 2
    name, what = argv
    if command := missing([name]):
        print(f"make the environment first: {command}")
        return 2
    with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
        lines = tables(name, Path(scratch)) if what == "tables" else plans(name, Path(scratch))
        for line in lines:
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
