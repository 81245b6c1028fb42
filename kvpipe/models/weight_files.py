"""Which safetensors files of a folder are the model's: those that its index names, each once.

A repository may hold the same weights twice (Mistral's consolidated.safetensors beside shards), a
LoRA beside the model (adapter_model.safetensors), and after a broken download only some shards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvpipe.errors import ConfigError, Problem, printable
from kvpipe.files.regular import open_regular
from kvpipe.models._safetensors import TensorTable, read_header
from kvpipe.models.config_file import reason

INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
_WHOLE = "model.safetensors"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_LONGEST_INDEX = 64 * 2**20  # bytes
_SHOWN = 3  # missing files that a message lists


@dataclass(frozen=True, kw_only=True)
class WeightFiles:
    """model: the files of its weights (none: only config.json is here). adapter: a LoRA's."""

    model: tuple[Path, ...]
    adapter: Path | None


def find_weights(folder: Path) -> WeightFiles:
    """ConfigError where a shard is missing, or the index cannot be read."""
    try:
        here = {file.name: file for file in folder.glob("*.safetensors")}
        index = folder / INDEX
        is_indexed = index.is_file()
    except OSError as error:
        raise _wrong(str(folder), "a folder that can be listed", reason(error)) from error
    adapter = here.pop(ADAPTER, None)
    named = _indexed(index) if is_indexed else _unindexed(sorted(here))
    present = [here[name] for name in named if name in here]
    if present and len(present) < len(named):
        raise _missing(folder, named, [name for name in named if name not in here])
    return WeightFiles(model=tuple(present), adapter=adapter)


def read_weights(files: Sequence[Path]) -> TensorTable | None:
    """Tensors of all the files; None where there are none."""
    return _tensors(tuple(map(_as_it_lies, files))) if files else None


@dataclass(frozen=True, kw_only=True)
class _Lying:
    """A file as it lies there: another state of it is another file."""

    path: Path
    device: int
    inode: int
    num_bytes: int
    modified_ns: int


def _as_it_lies(path: Path) -> _Lying:
    try:
        found = path.stat()
    except OSError as error:
        raise _wrong(str(path), "a safetensors header", reason(error)) from error
    return _Lying(
        path=path,
        device=found.st_dev,
        inode=found.st_ino,
        num_bytes=found.st_size,
        modified_ns=found.st_mtime_ns,
    )


@lru_cache(maxsize=4)  # a request is planned many times
def _tensors(files: tuple[_Lying, ...]) -> TensorTable:
    return {name: info for file in files for name, info in read_header(file.path).items()}


def _indexed(index: Path) -> list[str]:
    """The files that an index names."""
    try:
        with open_regular(index) as stream:
            content = stream.read(_LONGEST_INDEX + 1)
        raw: Any = json.loads(content) if len(content) <= _LONGEST_INDEX else None
    except (OSError, ValueError, RecursionError) as error:
        got = reason(error) if isinstance(error, OSError) else type(error).__name__
        raise _wrong(str(index), "a JSON object with a weight_map", got) from error
    table = raw.get("weight_map") if isinstance(raw, Mapping) else None
    if not isinstance(table, Mapping) or not table:
        raise _wrong(str(index), "a JSON object with a weight_map", type(table).__name__)
    names = set(table.values()) if all(isinstance(n, str) for n in table.values()) else {""}
    strange = sorted(n for n in names if not n.endswith(".safetensors") or Path(n).name != n)
    if strange:
        raise _wrong(str(index), "names of files beside it", printable(repr(strange[0])))
    return sorted(names)


def _unindexed(names: Sequence[str]) -> list[str]:
    """One file; or shards, whose names say how many there are; or whatever there is."""
    if _WHOLE in names:
        return [_WHOLE]
    for match in filter(None, map(_SHARD.fullmatch, names)):
        count = int(match["count"])
        return [f"{match['stem']}-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    consolidated = [name for name in names if name.startswith("consolidated")]
    return [name for name in names if name not in consolidated] or consolidated


def _missing(folder: Path, named: Sequence[str], missing: Sequence[str]) -> ConfigError:
    shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
    expected = f"the {len(named)} safetensors files that {folder.name or folder} names"
    got = f"{len(named) - len(missing)}; missing {printable(shown)}"
    knob = "finish the download, or move the files away: config.json is enough"
    return ConfigError(Problem("model.path", expected, got, knob))


def _wrong(origin: str, expected: str, got: str) -> ConfigError:
    knob = "fetch the real file (git lfs pull), or move it away: config.json is enough"
    return ConfigError(Problem(origin, expected, got, knob))
