#!/usr/bin/env python
"""The plug-in in a running vLLM: the same requests with the engine's groups and with kvpipe's.

python tools/live/proof.py vllm-0.32.0 gemma3-10-4        # default: all where layers pad

Says for each model: tokens equal or not, tokens printed, requests that ran at once before the
scheduler's first preemption, CPU time of a step in a load that both schedule alike (others on the
machine do not count in it): the least of several, and the spread. The table goes to docs/vllm.md by
hand, with its date.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.live.environments import ENVIRONMENTS, missing  # noqa: E402
from tools.live.model_files import CONTEXT  # noqa: E402
from tools.live.models import MODELS  # noqa: E402
from tools.live.plugin import installed_in  # noqa: E402

Json = dict[str, Any]
PADDED = ("gemma3-10-4", "gemma3-4-3", "gemma3-22-4", "gemma4-10-4", "gemma3-3-2")
# Other groupings hold more, but the engine marks groups of drafts itself: the plug-in leaves them.
DRAFTED = ("gpt-oss-eagle3", "qwen3-next-mtp")
# Across windows of 64 and their edges, a block of 16 and of 128, and long enough to be preempted.
LENGTHS = (5, 17, 60, 63, 64, 65, 127, 130, 200, 255, 256, 300, *(150 + 7 * i for i in range(28)))
NEW = 40
PROBE = Path(__file__).with_name("vllm_load.py")


def case_of(folder: Path, asked: Json) -> Json:
    arguments = arguments_of(folder, memory_of(folder), 256) | {"additional_config": asked}
    return {"arguments": arguments, "lengths": LENGTHS, "new": NEW}


def arguments_of(folder: Path, memory_bytes: int, step_tokens: int) -> Json:
    """What an engine of a small model is started with."""
    return {
        "model": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "float32",
        "block_size": 32,  # the least that the CPU kernel takes
        "max_model_len": CONTEXT,
        "max_num_batched_tokens": step_tokens,
        "max_num_seqs": 64,
        "seed": 0,
        "kv_cache_memory_bytes": memory_bytes,
    }


def memory_of(folder: Path) -> int:
    """Bytes: for about a dozen of these requests, so that some are preempted."""
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    return int(layers * 1.2 * 2**20)


def answered(name: str, probe: Path, case: Json, python_path: str, scratch: Path) -> Json:
    """What `probe CASE` says in the engine's environment. python_path: "" without kvpipe."""
    environment = ENVIRONMENTS[name]
    path = scratch / "case.json"
    path.write_text(json.dumps(case))
    variables = environment.environ() | {
        "PYTHONPATH": python_path,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [str(environment.python), str(probe), str(path)]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, cwd=scratch, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    if not lines:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(lines[-1].removeprefix("ANSWER "))


def compare(name: str, model: str, scratch: Path) -> Json:
    """Both runs of one model, and whether their tokens are equal."""
    folder = MODELS[model].write(scratch)
    python_path = installed_in(scratch / "site")
    own, ours = (
        answered(name, PROBE, case_of(folder, asked), python_path, scratch)
        for asked in ({}, {"kvpipe": {"grouping": "optimal"}})
    )
    equal = sum(own["tokens"][key] == ours["tokens"][key] for key in own["tokens"])
    return {"model": model, "own": own, "ours": ours, "equal": equal}


def step_ms(run: Json) -> str:
    """CPU milliseconds of a step: the least of the timed loads, and the most."""
    found = sorted(1000 * cpu / steps for cpu, steps, _ in run["timed"])
    assert not any(preempted for _, _, preempted in run["timed"]), run["timed"]
    return f"{found[0]:.2f} (to {found[-1]:.2f}, {run['timed'][0][1]} steps)"


def main(argv: Sequence[str]) -> int:
    name, *models = argv or ("vllm-0.32.0",)
    if command := missing([name]):
        print(f"make the environment first: {command}")
        return 2
    print(
        "| model | groups | tokens printed | at once | preempted | CPU ms a step | hits | equal |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for model in models or PADDED:
        with tempfile.TemporaryDirectory(prefix="kvpipe-live-") as scratch:
            found = compare(name, model, Path(scratch))
        both = [found["own"], found["ours"]]
        cells = [
            [str(len(run["groups"])) for run in both],
            [f"{run['printed']:,}" for run in both],
            [str(run["at_once"]) for run in both],
            [str(run["preemptions"]) for run in both],
            [step_ms(run) for run in both],
            [f"{run['hit_tokens']:,}" for run in both],
        ]
        shown = " | ".join(" -> ".join(cell) for cell in cells)
        print(f"| {model} | {shown} | {found['equal']} of {len(LENGTHS)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
