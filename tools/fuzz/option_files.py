"""YAML at random, as somebody else's saved run or folder of options: exit 0, 1 or 2, a line a
problem, and nothing of it acts."""

from __future__ import annotations

import io
import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

from fuzz.mutated import content, values
from fuzz.requests import raw_of
from kvpipe.front.main import run
from kvpipe.request.plain_yaml import dump_yaml

_TAILS = (
    "hydra: {job: {env_set: {FUZZED: x}}}\n",
    "? hydra\n: {job: {chdir: true}}\n",
    "hydra/launcher: joblib\n",
    "defaults: [/model/gpt2@_global_.hydra.job]\n",
    "defaults: [{/model: ../../x}]\n",
    "a: &a [*a]\n",
    "a: &a [1, 2]\nb: [*a, *a]\n<<: {c: 1}\n",
    "a: !!python/object/apply:os.getcwd []\n",
    "a: ${oc.env:HOME}\n",
    "a: ${${b}:HOME}\nb: oc.env\n",
    "--- \n- 1\n",
    "a: ???\n",
    "'': 1\n1: 2\nnull: 3\ntrue: 4\n",
)


@cache
def _whole() -> dict[str, Any]:
    return raw_of({"model": "gpt2"})


def at_random(seed: Random) -> bytes:
    raw = values(_whole(), seed) if seed.random() < 0.8 else _whole()
    try:
        text = dump_yaml(raw)
    except UnicodeError:
        text = "a: 1\n"
    if seed.random() < 0.4:
        text += seed.choice(_TAILS)
    made = text.encode("utf-8", "surrogatepass")
    return content(made, seed) if seed.random() < 0.4 else made


def wrong_with(made: bytes) -> str:
    """ "" where it ends as it should: through a saved run, and where it is short, as an option."""
    before, here = dict(os.environ), os.getcwd()
    folder = Path(mkdtemp())
    said = io.StringIO()
    try:
        os.chdir(folder)
        (folder / "theirs").mkdir()
        (folder / "theirs/config.yaml").write_bytes(made)
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = run(["-cp", "theirs", "++report.name=none", "++backend.name=meta"])
        return _wrong(code, said.getvalue(), before, folder)
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)


def _wrong(code: int, said: str, before: dict[str, str], folder: Path) -> str:
    if dict(os.environ) != before:
        return "the environment changed"
    if code not in (0, 1, 2):
        return f"exit {code}: {said}"
    if any(not line.startswith("kvpipe: ") or not line.isprintable() for line in said.splitlines()):
        return f"complaints that are no lines: {said!r}"
    left = {path.name for path in folder.iterdir()} - {"theirs", "outputs"}
    return f"left {left}" if left or (code == 2 and (folder / "outputs").exists()) else ""
