"""A long quoted JSON word of a command, over several lines: white space between its parts is none
of its own, so a shell and the program read the same."""

from __future__ import annotations

import json
import re
import shlex

_INDENT = "    "
_AFTER_COMMA = re.compile(r'(?<=,)(?=")|(?<=, )(?=")')


def broken_json(line: str, width: int) -> list[str]:
    """The line, broken after commas within a quoted JSON object where it is longer than width and
    then still reads the same; else as it is."""
    if len(line) <= width or "'{" not in line:
        return [line]
    start = line.index("'{")
    first, *parts = _AFTER_COMMA.split(line[start:])
    lines = [line[:start] + first]
    for part in parts:
        if len(lines[-1]) + len(part) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append(_INDENT + part)
        else:
            lines[-1] += part
    return lines if _read_alike(line, "\n".join(lines)) else [line]


def _read_alike(one: str, other: str) -> bool:
    """Whether all words that are JSON mean the same, and the others are the same."""
    whole = [text.removesuffix(" \\") for text in (one, other)]
    try:
        first, second = (list(map(_meant, shlex.split(text))) for text in whole)
        return first == second
    except ValueError:  # a quote that does not end
        return False


def _meant(word: str) -> object:
    try:
        return json.loads(word) if word.startswith("{") else word
    except ValueError:
        return word
