"""A line as it was pasted -> the engine's own line, without colours and JSON around it.

What tells ranks apart (prefixes, labels of a JSON record) stays in front of the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Colours, with their escape character or (copied from a terminal) without it.
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\[[0-9;]{1,16}m")
# Where log collectors put the text, the likeliest first.
_TEXT_KEYS = ("textPayload", "log", "message", "msg", "MESSAGE", "line", "text", "body", "content")
_NESTED = ("jsonPayload", "fields", "record", "event")
DEEPEST = 4  # envelopes in envelopes
LONGEST_LABELS = 2000  # characters of a JSON record's other fields


def unwrapped(raw: str, depth: int = 0) -> Iterator[str]:
    """The lines that a line of the file stands for."""
    for line in raw.splitlines():  # progress bars return to the start of their line
        stripped = line.lstrip()
        if stripped.startswith("{") and depth < DEEPEST:
            record = _record(stripped)
            if record is not None:
                yield from _of_record(record, depth)
                continue
        yield _COLOUR.sub("", line)


def _record(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _of_record(record: dict[str, Any], depth: int) -> Iterator[str]:
    labels = " ".join(
        f"({key}={value})"
        for key, value in record.items()
        if isinstance(value, (str, int)) and key not in _TEXT_KEYS and len(str(value)) < 200
    )[:LONGEST_LABELS]
    for text in _texts(record):
        for line in unwrapped(text, depth + 1):
            yield f"{labels} {line}" if labels else line


def _texts(record: dict[str, Any]) -> Iterator[str]:
    """The text of a record, or of the record in it, at most DEEPEST deep."""
    for _ in range(DEEPEST):
        text = next((record[key] for key in _TEXT_KEYS if isinstance(record.get(key), str)), None)
        if text is not None:
            yield text
            return
        inner = next((record[key] for key in _NESTED if isinstance(record.get(key), dict)), None)
        if inner is None:
            return
        record = inner
