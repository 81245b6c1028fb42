"""The files that a served page may read: those of one chosen folder, and those that were dropped.

A file is named by a number, never by a path. What leads out of the folder is not on the shelf: a
link, or a model file beside which such a link lies (a reader opens what lies beside it, too).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from kvpipe.errors import ConfigError, Problem
from kvpipe.text.clean import clean

MOST_FILES = 500
MOST_DROPPED = 50
KINDS = {"config.json": "model", ".gguf": "model", ".log": "log", ".txt": "log"}
LARGEST_BYTES = {"config": 4 * 2**20, "gguf": 64 * 2**20, "log": 64 * 2**20}


@dataclass(frozen=True, kw_only=True)
class ShelfFile:
    """kind: model | log. name: as it is shown."""

    kind: str
    name: str
    path: Path


@dataclass(kw_only=True)
class Shelf:
    """folder: None where only dropped files are read. `close` removes the dropped ones."""

    folder: Path | None
    _dropped: TemporaryDirectory[str] = field(
        default_factory=lambda: TemporaryDirectory(prefix="kvpipe-page-"), repr=False
    )
    _files: list[ShelfFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.folder is not None:
            if not self.folder.is_dir():
                raise ConfigError(no_folder(str(self.folder)))
            self._files += _of_folder(self.folder.resolve())

    def close(self) -> None:
        self._dropped.cleanup()

    @property
    def files(self) -> tuple[ShelfFile, ...]:
        return tuple(self._files)

    def file(self, number: int) -> ShelfFile:
        """ConfigError for a number that no file has, or whose file leads elsewhere by now."""
        wanted = "one that was chosen or dropped"
        if not 0 <= number < len(self._files):
            raise ConfigError(Problem("file", wanted, f"{number}"))
        file = self._files[number]
        homes = [Path(self._dropped.name), *([self.folder] if self.folder else [])]
        if not any(_stays(home.resolve(), file.path, file.kind) for home in homes):
            raise ConfigError(Problem("file", wanted, f"'{file.name}', which leads elsewhere"))
        return file

    def named(self, text: str) -> str:
        """What is told of a file: with the name it is shown by, not the place where it is kept."""
        for file in sorted(self._files, key=lambda file: len(str(file.path)), reverse=True):
            text = text.replace(str(file.path), file.name)
            if file.path.is_relative_to(self._dropped.name):  # a command serves its folder
                text = text.replace(str(file.path.parent), file.name)
        return text

    def drop(self, name: str, content: bytes) -> int:
        """Keep a dropped file, under a name of ours; its number."""
        suffix = suffix_of(name, content)
        largest = LARGEST_BYTES[suffix]
        if len(content) > largest:
            got = f"{len(content):,} bytes"
            raise ConfigError(Problem("file", f"at most {largest:,} bytes of {suffix}", got))
        if len(list(Path(self._dropped.name).iterdir())) >= MOST_DROPPED:
            raise ConfigError(Problem("file", f"at most {MOST_DROPPED} dropped files", "one more"))
        number = len(self._files)
        place = Path(self._dropped.name) / str(number)
        place.mkdir()
        ours = {"config": "config.json", "gguf": "model.gguf", "log": "start.log"}[suffix]
        (place / ours).write_bytes(content)
        kind = "log" if suffix == "log" else "model"
        shown = clean(Path(name.replace("\\", "/")).name)[:80]
        self._files.append(ShelfFile(kind=kind, name=shown or ours, path=place / ours))
        return number


def no_folder(name: str) -> Problem:
    return Problem("command.folder", "a folder", f"'{name}'")


def suffix_of(name: str, content: bytes) -> str:
    """config | gguf | log: by what it begins with; a name decides nothing but JSON from a log."""
    if content[:4] == b"GGUF":
        return "gguf"
    return "config" if name.lower().endswith(".json") else "log"


def _of_folder(folder: Path) -> list[ShelfFile]:
    """Model files and logs in the folder and in the folders in it."""
    found: list[ShelfFile] = []
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        kind = KINDS.get(path.name) or KINDS.get(path.suffix)
        if kind is None or not path.is_file() or not _stays(folder, path, kind):
            continue
        name = clean(str(path.relative_to(folder)))
        found.append(ShelfFile(kind=kind, name=name, path=path))
        if len(found) == MOST_FILES:
            break
    return found


def _stays(folder: Path, path: Path, kind: str) -> bool:
    """Whether neither the file nor, of a model, anything beside it leads out of the folder."""
    read = [path] if kind == "log" else [path, *path.parent.iterdir()]
    return all(each.resolve().is_relative_to(folder) for each in read)
