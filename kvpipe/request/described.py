"""What the shipped YAML says about its own settings: the comment beside each key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kvpipe.request.confdir import CONF_DIR

_SETTING = re.compile(r"(\w+):\s*(\S.*?)?(?:\s+# (.*))?$")


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
    """The shipped option files of a group, by name."""
    return [_choice(path) for path in sorted((CONF_DIR / group).glob("*.yaml"))]


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
