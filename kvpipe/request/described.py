"""What the shipped YAML says about its own settings: the comment beside each key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvpipe.files.entry_points import entry_points
from kvpipe.request.confdir import CONF_DIR

_SETTING = re.compile(r"(\w+):(?:\s+(?!#)(\S.*?))?(?:\s+# (.*))?$")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A key of an option file, its value there, and the sentence beside it ("": none)."""

    key: str
    value: str
    comment: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An option file of a group. comment: its first line."""

    name: str
    comment: str
    settings: tuple[Setting, ...]


def choices(group: str) -> list[Choice]:
    """The option files of a group, shipped and of installed packages, by name."""
    folders = [CONF_DIR, *_third_parties()]
    paths = {
        path.stem: path for folder in reversed(folders) for path in folder.glob(f"{group}/*.yaml")
    }
    return [_choice(paths[name]) for name in sorted(paths)]


def _third_parties() -> Iterator[Path]:
    """The folders that entry points `kvpipe.conf` name; their packages are found, not imported."""
    for point in entry_points(group="kvpipe.conf"):
        top, *inside = point.value.split(".")
        found = find_spec(top)
        for folder in found.submodule_search_locations or () if found else ():
            yield Path(folder).joinpath(*inside)


def _choice(path: Path) -> Choice:
    lines = path.read_text(encoding="utf-8").splitlines()
    first = lines[0].removeprefix("#").strip() if lines and lines[0].startswith("#") else ""
    settings: list[Setting] = []
    for line in lines:
        if match := _SETTING.match(line):
            key, value, comment = match.groups()
            settings.append(Setting(key=key, value=value or "", comment=comment or ""))
        elif settings and line.startswith(" ") and line.strip().startswith("# "):  # it goes on
            last = settings[-1]
            more = f"{last.comment} {line.strip()[1:].strip()}"
            settings[-1] = Setting(key=last.key, value=last.value, comment=more)
    return Choice(name=path.stem, comment=first, settings=tuple(settings))
