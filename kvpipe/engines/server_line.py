"""The command line of a server that kvpipe plans but does not allocate for -> settings, by a table
of its flags; those that stand for nothing here are kept by name.

One file an engine has the table: `sglang_pasted.py`, `llama_cpp_pasted.py`,
`tensorrt_llm_pasted.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvpipe.engines.pasted import LONGEST, Pasted
from kvpipe.engines.pasted_weights import is_read
from kvpipe.text.secrets import masked_words

_NUMBER = re.compile(r"[0-9]{1,12}|[0-9]{0,6}\.[0-9]{1,9}")
_ENDS = ("&&", "|", ";", "&", ">", ">>", "2>&1")
_IS_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """engine: the option of `engine`. begins: a line's words -> where the arguments begin, None: no
    line of this server. keys: flags with a value -> setting. switches: without one -> setting and
    value. words: its words -> ours. remarks: flags that are not planned -> what that means.
    has_model_first: the model is no flag."""

    engine: str
    begins: Callable[[Sequence[str]], int | None]
    keys: Mapping[str, str]
    switches: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    has_model_first: bool = False

    def read(self, text: str) -> Pasted | None:
        """The last such command in the text, its secrets masked; None where there is none."""
        found = None
        for line in text[:LONGEST].replace("\\\r\n", " ").replace("\\\n", " ").split("\n"):
            words = list(masked_words(_split(line)))
            if (start := self.begins(words)) is not None:
                found = self._of(words[:start], words[start:])
        return found

    def _of(self, program: Sequence[str], words: Sequence[str]) -> Pasted:
        ends = (at for at, word in enumerate(words) if word in _ENDS or word.startswith("#"))
        words = words[: next(ends, len(words))]
        settings: dict[str, Any] = {}
        unknown: list[str] = []
        at = 0
        while at < len(words):
            at += self._word(words, at, settings, unknown)
        model = settings.pop("model", None)
        return Pasted(
            model=None if model is None else str(model),
            program=tuple(program),
            arguments=tuple(words),
            settings=settings,
            unknown=tuple(dict.fromkeys(unknown)),
            engine=self.engine,
        )

    def _word(
        self, words: Sequence[str], at: int, settings: dict[str, Any], unknown: list[str]
    ) -> int:
        """How many words were read."""
        name, equals, value = words[at].partition("=")
        name = name.replace("_", "-")
        if name in self.switches:
            key, turned = self.switches[name]
            settings[key] = turned
        elif name in self.keys:
            text = value if equals else "".join(words[at + 1 : at + 2])
            self._set(name, text, settings, unknown)
            return 1 if equals else 2
        elif _IS_FLAG.match(name):
            unknown.append(name + self.remarks.get(name, ""))
            has_value = self.has_model_first and not equals
            follows = words[at + 1 : at + 2]
            return 2 if has_value and follows and not _IS_FLAG.match(follows[0]) else 1
        elif self.has_model_first:
            settings.setdefault("model", words[at])
        return 1

    def _set(self, name: str, text: str, settings: dict[str, Any], unknown: list[str]) -> None:
        if text.startswith("-"):  # -1: none, which no setting of ours says
            unknown.append(f"{name} {text}")
            return
        key = self.keys[name]
        settings[key] = self._value(text)
        if key == "weights" and not is_read(text):
            unknown.append(f"{name} {text} (planned as published)")

    def _value(self, text: str) -> Any:
        if _NUMBER.fullmatch(text):
            return float(text) if "." in text else int(text)
        return self.words.get(text, text)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote that does not end
        return line.split()
