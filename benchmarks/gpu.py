"""Everything about the kernels that needs an NVIDIA GPU: steps with limits, resumable, one page.

    benchmarks/gpu.sh [--device-name h100_80gb] [--out outputs/gpu]

Each step writes <out>/<step>.txt and, when it has passed, <step>.passed; running the command again
does only what has not passed, at the same commit. <out>/page.md is written after every step: its
text goes into docs/kernels.md. The exit code is the number of steps that failed.
--stand-in rehearses the same steps on a machine without a GPU: the launches run on the CPU, so the
page has its shape and none of its numbers mean anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Bytes that one call of a group moves (read + written), of benchmarks/rivals/kernels.py: 4,096
# tokens of 8 heads of 128 bf16 numbers, K and V; fp8 is written as half; fill writes 256 blocks.
MOVED = {
    "write_kv, whole blocks": 4 * 4096 * 2048,
    "write_kv, every token elsewhere": 4 * 4096 * 2048,
    "write_kv, bf16 to fp8": 3 * 4096 * 2048,
    "gather, whole blocks": 4 * 4096 * 2048,
    "fill 256 blocks": 2 * 4096 * 2048,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """command runs in the root of the repository. told: its output -> lines of the page."""

    name: str
    title: str
    command: Sequence[str]
    limit_s: float
    told: Callable[[str], str]


def steps(stand_in: bool, bandwidth: float | None) -> list[Step]:
    python = sys.executable
    chosen = "cupy_stand_in and not full" if stand_in else "gpu and not full"
    which = ["-k", "cupy_stand_in"] if stand_in else ["-m", chosen]
    tests = [python, "-m", "pytest", "-q", "-n", "0", "-rfE", *which]
    suite = ["tests/kernels/test_kernels_bounds.py"] if stand_in else ["tests/kernels"]
    device = ["--device", "stand_in", "--rounds", "1"] if stand_in else ["--device", "cuda"]
    speed = [python, "benchmarks/rivals/kernels.py", *device]
    machine = [python, __file__, "--tell-machine"] + (["--stand-in"] if stand_in else [])
    plans = [
        Step(
            name=f"plan_{backend}", title=f"The self-proof on backend={backend}",
            command=[python, "-m", "kvpipe", "model=pythia_70m", f"backend={backend}",
                     f"device={'cpu' if stand_in else 'auto'}", "report=json",
                     "cache.kv_cache_memory_bytes=4MiB"],
            limit_s=120, told=_digest,
        )
        for backend in (("host", "torch") if stand_in else ("cupy", "torch"))
    ]  # fmt: skip
    return [
        Step(name="machine", title="Machine", command=machine, limit_s=60, told=str.strip),
        Step(name="tests", title="Tests on the device", command=[*tests, *suite], limit_s=300,
             told=_verdict),
        Step(name="speed", title="Speed", command=speed, limit_s=120,
             told=lambda text: _against_limit(text, bandwidth)),
        *plans,
    ]  # fmt: skip


def run(todo: Sequence[Step], out: Path, commit: str) -> int:
    """Failed steps. One that passed at this commit is not run again."""
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for step in todo:
        passed, log = out / f"{step.name}.passed", out / f"{step.name}.txt"
        if passed.exists() and passed.read_text() == commit:
            continue
        passed.unlink(missing_ok=True)
        print(f"{step.name} (at most {step.limit_s:g} s): {' '.join(step.command)}", flush=True)
        code = _run(step, log)
        failed += code != 0
        print(f"{step.name}: {'passed' if code == 0 else f'failed ({code})'}", flush=True)
        if code == 0:
            passed.write_text(commit)
        (out / "page.md").write_text(page(todo, out, commit))
    (out / "page.md").write_text(page(todo, out, commit))
    return failed


def _run(step: Step, log: Path) -> int:
    with log.open("w") as file:
        try:
            return subprocess.run(
                step.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
                timeout=step.limit_s, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            file.write(f"\nno end after {step.limit_s:g} s\n")
            return 124


def page(todo: Sequence[Step], out: Path, commit: str) -> str:
    """Markdown: what each step found; a step that failed or has not run says so."""
    parts = [f"## On a GPU\n\n{datetime.date.today()}, commit {commit}, `benchmarks/gpu.sh`."]
    for step in todo:
        log = out / f"{step.name}.txt"
        if not log.exists():
            text = "Not run."
        elif not (out / f"{step.name}.passed").exists():
            text = f"**Failed.**\n\n{_verdict(log.read_text())}"
        else:
            text = step.told(log.read_text())
        parts.append(f"### {step.title}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def _verdict(text: str) -> str:
    """The failing tests by name, or the last line."""
    failed = re.findall(r"^(?:FAILED|ERROR) \S+", text, re.M)
    last = (text.strip().splitlines() or ["nothing was printed"])[-1]
    return "\n".join([*(f"- {line}" for line in failed[:50]), last])


def _against_limit(text: str, bandwidth: float | None) -> str:
    """The table with GB/s and, where the card's bandwidth is known, the part of it that is used."""
    lines = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| operation"):
            lines.append(f"{line} GB/s | of the memory's limit |")
        elif line.startswith("|---"):
            lines.append(f"{line}---|---|")
        elif line.startswith("|") and cells[0] in MOVED:
            rate = MOVED[cells[0]] / (float(cells[2]) / 1e3) if float(cells[2]) else 0.0
            share = f"{rate / bandwidth:.0%}" if bandwidth else "not known"
            lines.append(f"{line} {rate / 1e9:.0f} | {share} |")
        elif line.startswith("|"):
            lines.append(f"{line} - | - |")
        else:
            lines.append(line)
    return "\n".join(lines).strip()


def _digest(text: str) -> str:
    """The digest of the bytes, and the memory that the plan took the device to have."""
    document = json.loads(text[text.index("{") :])
    device = document.get("device", {})
    total = device.get("total_bytes", device.get("memory_bytes"))
    digests = re.findall(r'"digest": "(\w+)"', text)
    return f"digest {', '.join(digests) or 'none'}; planned for {total} bytes of device memory"


def tell_machine(stand_in: bool) -> None:
    if stand_in:
        print("stand-in: launches run on the CPU; no number on this page means anything")
        return
    query = "name,driver_version,memory.total,memory.free,clocks.max.memory"
    subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv"], check=True)
    import cupy
    import torch

    free, total = cupy.cuda.Device(0).mem_info
    print(f"cupy {cupy.__version__} torch {torch.__version__}")
    print(f"cudaMemGetInfo: {total} bytes, {free} free")


def _bandwidth(name: str | None) -> float | None:
    """Bytes a second, as conf/device says."""
    if name is None:
        return None
    import yaml

    path = ROOT / "conf/device" / f"{name}.yaml"
    return float(yaml.safe_load(path.read_text())["bandwidth_bytes_per_s"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT / "outputs/gpu")
    parser.add_argument("--device-name", help="a file of conf/device, for the memory's limit")
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--tell-machine", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.tell_machine:
        tell_machine(asked.stand_in)
        return 0
    head = ["git", "rev-parse", "--short", "HEAD"]
    told = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=False)
    commit = told.stdout.strip()
    return run(steps(asked.stand_in, _bandwidth(asked.device_name)), asked.out, commit or "unknown")


if __name__ == "__main__":
    sys.exit(main())
