"""A pasted server line with some settings changed: what else stands there is left as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvpipe.engines.pasted import KEYS, TURNED, Pasted
from kvpipe.engines.serve import FLAGS

# Settings of kvpipe that no server has: they say what else there is on the card.
_NO_FLAG = ("profiling.other_instances_bytes",)
# Words of `--quantization` by which a server converts 16 bits as it loads them; others need another
# checkpoint.
_CONVERTS = ("fp8",)
# What a shell is to expand stays unquoted.
_PLAIN = re.compile(r"(?:[\w@%+=:,./~-]|\$\w|\$\{\w+\})+")
_KEY = re.compile(r"\b(?:cache|scheduler|parallel|profiling|model)\.[a-z_]+(?:=[\w.,-]*\w)?")
_LONG = {**{flag.key: flag.name for flag in FLAGS},
         "cache.gpu_memory_utilization": "--gpu-memory-utilization",
         "weights.load_as": "--quantization"}  # fmt: skip


def changed_line(pasted: Pasted, changes: Mapping[str, Any], without: Iterable[str] = ()) -> str:
    """One line for a shell; "" where a change has no flag, or what was pasted names no model.
    without: flags that are taken out, with the word that follows one and is no flag itself."""
    if pasted.model is None:
        return ""
    words = _without(pasted, frozenset(without))
    for key, value in changes.items():
        if key in _NO_FLAG or (key.startswith("weights.") and key not in _LONG):
            continue
        if isinstance(value, bool):
            if (flag := _switch(key, value)) is None:
                return ""
            words = [word for word in words if TURNED.get(_name(word), ("", ""))[0] != key]
            words.append(flag)
        elif key == "weights" and value not in _CONVERTS:
            return ""
        elif key in _LONG:
            words = _set(words, key, value)
        else:
            return ""
    program = list(pasted.program)
    if not program:  # arguments alone, where the model is one of them
        words = _set(words, "model", None)
        program = ["vllm", "serve", pasted.model]
    return " ".join(map(_quoted, (*program, *words)))


def _without(pasted: Pasted, flags: frozenset[str]) -> list[str]:
    kept: list[str] = []
    words = list(pasted.arguments)
    while words:
        word = words.pop(0)
        if _name(word) not in flags:
            kept.append(word)
        elif words and "=" not in word and words[0] != pasted.model and words[0][:1] != "-":
            words.pop(0)
    return kept


def _quoted(word: str) -> str:
    return word if _PLAIN.fullmatch(word) else shlex.quote(word)


def in_flags(text: str) -> str:
    """The same sentence with a server's flags for the settings that have one."""

    def flag(found: re.Match[str]) -> str:
        key, equals, value = found[0].partition("=")
        if key in _LONG:
            return f"{_LONG[key]}{' ' if equals else ''}{value}"
        wanted = _switch(key, value == "true") if value in ("true", "false") else None
        return wanted or found[0]

    return _KEY.sub(flag, text)


def words_of(changes: Mapping[str, Any]) -> str:
    """A change as one says it: `--max-model-len 25536`, and in kvpipe's words what has no flag."""
    told: list[str] = []
    for key, value in changes.items():
        if key.startswith("weights.") and key not in _LONG:
            continue
        if key == "weights" and value not in _CONVERTS:
            told.append(f"weights={value}")
        elif isinstance(value, bool):
            told.append(_switch(key, value) or f"{key}={str(value).lower()}")
        elif value is None and key in _LONG:
            told.append(f"no {_LONG[key]}")
        else:
            told.append(f"{_LONG[key]} {value}" if key in _LONG else f"{key}={value}")
    return " ".join(told)


def _set(words: Sequence[str], key: str, value: Any) -> list[str]:
    """Every spelling of its flag replaced where it stands, or added; None takes it out."""
    kept: list[str] = []
    found = False
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if not name.startswith("-") or KEYS.get(_name(word)) != key:
            kept.append(word)
            continue
        if not equals:
            next(rest, "")
        if value is not None and not found:
            kept += [f"{name}={value}"] if equals else [name, str(value)]
        found = True
    return kept if found or value is None else [*kept, _LONG[key], str(value)]


def _switch(key: str, value: bool) -> str | None:
    wanted = (key, str(value).lower())
    return next((name for name, turned in TURNED.items() if turned == wanted), None)


def _name(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")


def said_changes(said: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a user set beside the line, by key. values: the composed sections."""
    found: dict[str, Any] = {}
    for key in said:
        section, _, name = key.partition(".")
        section_values = values.get(section)
        if not isinstance(section_values, Mapping):
            continue
        for each in [name] if name else section_values:
            full, value = f"{section}.{each}", section_values.get(each)
            is_plain = value not in (None, "auto") and not isinstance(value, bool)
            if full in _LONG and is_plain and (name or value != 1):
                found[full] = value
    return found
