"""A long quoted JSON word of a command, over several lines: white space between its parts is none
of its own, so a shell and the program read the same."""

from __future__ import annotations

import json
import shlex

_INDENT = "    "


def broken_json(line: str, width: int) -> list[str]:
    """The line, broken after commas within a quoted JSON object where it is longer than width and
    then still reads the same; else as it is."""
    if len(line) <= width or "'{" not in line:
        return [line]
    start = line.index("'{")
    parts = line[start:].split(',"')
    lines = [line[:start] + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += ","
            lines.append(f'{_INDENT}"{part}')
        else:
            lines[-1] += f',"{part}'
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
