#!/usr/bin/env python
"""Makes the environments of the engines the live checks start, and reuses those that stand.

python tools/live/setup.py vllm-0.32.0 vllm-0.28.0 llama-cpp transformers
python tools/live/setup.py                      # says which there are, and which stand

They stand in $KVPIPE_LIVE_DIR or ~/.cache/kvpipe-live. Exit 2: an unknown name; 1: not made.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.live.environments import ENVIRONMENTS, STAMP, Environment  # noqa: E402

# An index that is away is said in seconds: one short question before the long installation.
_ASK = ("--retries", "0", "--timeout", "10", "--disable-pip-version-check")


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        print(f"environment: expected one of {', '.join(ENVIRONMENTS)}, got {', '.join(unknown)}")
        return 2
    if not names:
        for environment in ENVIRONMENTS.values():
            state = "stands" if environment.is_complete() else "not made"
            print(f"{environment.name:14} {state:9} {environment.folder}")
        return 0
    return max(make(ENVIRONMENTS[name]) for name in names)


def make(environment: Environment) -> int:
    """0 when the environment stands afterwards, 1 (and why) when it does not."""
    if environment.is_complete():
        print(f"{environment.name}: stands in {environment.folder}")
        return 0
    if environment.folder.exists():
        print(f"{environment.name}: half made or of other packages; made again")
        shutil.rmtree(environment.folder)
    started = time.perf_counter()
    fault = _make(environment)
    if fault:
        shutil.rmtree(environment.folder, ignore_errors=True)
        print(f"{environment.name}: not made. {fault}")
        return 1
    (environment.folder / STAMP).write_text(environment.stamp())
    seconds = time.perf_counter() - started
    print(f"{environment.name}: made in {seconds:.0f} s in {environment.folder}")
    return 0


def _make(environment: Environment) -> str:
    """ "" or what went wrong, in a line."""
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    package = environment.requirements[0].partition("==")[0]
    if fault := _run([sys.executable, "-m", "pip", "index", "versions", package, *_ASK]):
        return f"The package index does not answer for {package}: {fault}"
    print(f"{environment.name}: being made (about {environment.minutes} minutes)", flush=True)
    venv.create(environment.folder, with_pip=True)
    steps = [
        [*_pip(environment), "install", "--quiet", "--upgrade", "pip"],
        [*_pip(environment), "install", "--quiet", "--no-compile", *environment.requirements],
        [str(environment.python), "-c", f"import {environment.module}"],
    ]
    if environment.removed:
        steps.insert(2, [*_pip(environment), "uninstall", "--quiet", "-y", *environment.removed])
    return next(filter(None, map(_run, steps)), "")


def _pip(environment: Environment) -> list[str]:
    return [str(environment.python), "-m", "pip", "--disable-pip-version-check"]


def _run(command: Sequence[str]) -> str:
    """ "" or the last line of what the command said when it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit {done.returncode}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
