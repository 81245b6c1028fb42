"""`--help all`: every group with a sentence and its choices, every setting with a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.described import Choice, Setting, choices
from kvpipe.text.lines import Line, Section

_GROUP = re.compile(r"  - (\w+): (\w+)\s*(?:# (.*))?$")
_WIDEST = 20  # columns of a default
_NO_SETTINGS = ("name", "defaults")


def groups_told() -> Mapping[str, tuple[str, str]]:
    """Group -> the choice that stands there by default, and the sentence of conf/config.yaml."""
    lines = (CONF_DIR / "config.yaml").read_text(encoding="utf-8").splitlines()
    found = filter(None, map(_GROUP.match, lines))
    return {match[1]: (match[2], match[3] or "") for match in found}


def all_sections() -> Iterator[Section]:
    yield Section(
        title="Every group (group=choice) and its settings (key=value), as conf/ has them",
        paragraphs=[
            Line("kvpipe --help GROUP says what each choice is; --help WORD finds what mentions it")
        ],
    )
    for group, (default, sentence) in groups_told().items():
        found = choices(group)
        names = ", ".join(choice.name for choice in found)
        settings = _told(found, default)
        yield Section(
            title=f"{group}: {sentence}",
            align="lll" if settings else "",
            headers=("key", "default", "what it is") if settings else (),
            rows=[(f"{group}.{each.key}", _short(each.value), each.comment) for each in settings],
            paragraphs=[Line(f"{group}=: {names}", "faint")],
        )


def _short(value: str) -> str:
    return value if len(value) <= _WIDEST else f"{value[: _WIDEST - 4]} ..."


def _told(found: list[Choice], default: str) -> list[Setting]:
    """Each setting that a choice explains, the default choice's own word first."""
    first = sorted(found, key=lambda choice: choice.name != default)
    told: dict[str, Setting] = {}
    for choice in first:
        for setting in choice.settings:
            if setting.key not in _NO_SETTINGS and setting.comment:
                told.setdefault(setting.key, setting)
    return list(told.values())
