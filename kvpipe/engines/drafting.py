"""What a pasted vLLM line says of speculative decoding: `--speculative-config '{...}'`, its dotted
forms, and the flags of older releases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CONFIG = ("--speculative-config", "-sc")
_MODEL, _OLD_MODEL = "--speculative-config.model", "--speculative-model"
_METHOD, _TOKENS = "--speculative-config.method", "--num-speculative-tokens"
_FLAGS = (*_CONFIG, _MODEL, _OLD_MODEL, _METHOD, _TOKENS)
# Drafted from the request's own tokens: no weights, no cache.
_LOOKED_UP = ("ngram", "ngram_gpu", "suffix")
_WORD = r"\W{1,6}([\w./@-]{1,200})"


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """flag: as it stands in the line. method, model: as written ("": not said)."""

    flag: str
    method: str = ""
    model: str = ""

    @property
    def is_looked_up(self) -> bool:
        return self.method in _LOOKED_UP or self.model.strip("[]") in _LOOKED_UP

    @property
    def is_own_layers(self) -> bool:
        """Prediction layers of the model's own checkpoint."""
        return self.method.endswith("mtp")

    @property
    def place(self) -> str:
        """What drafts, as `model.draft` names it; "" where nothing says it."""
        return "mtp" if self.is_own_layers else self.model

    @property
    def words(self) -> str:
        if self.is_own_layers:
            return "the prediction layers that draft"
        return f"the draft ({self.model or self.method})" if self.place or self.method else (
            "what drafts"
        )  # fmt: skip


def drafting_of(arguments: Sequence[str]) -> Drafting | None:
    """None where no flag speaks of it."""
    said = dict(_said(arguments))
    if not said:
        return None
    config = next((said[flag] for flag in _CONFIG if flag in said), "")
    return Drafting(
        flag=next(iter(said)),
        method=said.get(_METHOD, "") or _in(config, "method"),
        model=said.get(_MODEL, said.get(_OLD_MODEL, "")) or _in(config, "model"),
    )


def _said(arguments: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if name in _FLAGS:
            found.append((name, value if equals else (*arguments[at + 1 : at + 2], "")[0]))
    return found


def _in(config: str, key: str) -> str:
    """Of JSON, whole or with its quotes eaten by a shell."""
    match = re.search(rf"(?<![\w]){key}{_WORD}", config[:2000])
    return match[1] if match else ""
