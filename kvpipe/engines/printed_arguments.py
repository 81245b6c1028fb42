"""vLLM's own line `non-default args: {...}` -> the words of the command that it stands for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

WORDS = "non-default args: {"
_MODEL = ("model_tag", "model")


def printed_command(text: str) -> list[str] | None:
    """`vllm serve MODEL --flag value ...` of the last such line; None where there is none, or it
    holds what is no literal (objects that releases print by their class)."""
    at = text.rfind(WORDS)
    if at < 0:
        return None
    values = _literal(text[at + len(WORDS) - 1 :].split("\n", 1)[0])
    if values is None:
        return None
    model = next((str(values[key]) for key in _MODEL if values.get(key)), None)
    flags = [word for key, value in values.items() if key not in _MODEL
             for word in _flag(f"--{key.replace('_', '-')}", value)]  # fmt: skip
    return ["vllm", "serve", *([model] if model else []), *flags]


def _literal(line: str) -> Mapping[str, Any] | None:
    from ast import literal_eval  # of logs alone

    try:
        values = literal_eval(line[: line.rindex("}") + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    is_plain = isinstance(values, dict) and all(isinstance(key, str) for key in values)
    return values if is_plain else None


def _flag(name: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, bool):
        yield name if value else f"--no-{name[2:]}"
        return
    yield name
    if isinstance(value, (list, tuple)):
        yield from map(str, value)
    else:
        yield json.dumps(value) if isinstance(value, dict) else str(value)
