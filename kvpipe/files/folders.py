"""Where a run leaves its files: a folder of its own, made once there is something to write."""

from __future__ import annotations

from errno import ENOTDIR
from pathlib import Path

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.atomic import write_atomic


def new_folder(wanted: Path) -> Path:
    """`wanted`, or `wanted-1`, ... when another run of the same second has it. Created."""
    try:
        if wanted.exists() and not wanted.is_dir():
            raise OSError(ENOTDIR, "not a folder")
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for n in range(10_000):
            folder = wanted.with_name(f"{wanted.name}-{n}") if n else wanted
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
        got = f"'{wanted}' and 10,000 others beside it"
    except (OSError, ValueError) as error:
        got = f"'{wanted}' ({getattr(error, 'strerror', None) or error})"
    knob = "choose another: hydra.run.dir=FOLDER (hydra.sweep.dir in a sweep)"
    raise ConfigError(Problem("hydra.run.dir", "a folder that can be made", got, knob))


def save_config(config: str, overrides: str, folder: Path) -> None:
    """What was composed, as YAML, so that `kvpipe -cp FOLDER/.hydra` runs it again: as Hydra lays
    it out."""
    write_atomic(folder / ".hydra" / "config.yaml", config)
    write_atomic(folder / ".hydra" / "overrides.yaml", overrides)
