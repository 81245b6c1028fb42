"""The words of a command line that are no settings: a command, a model -> Hydra overrides."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvpipe.errors import ConfigError, Problem
from kvpipe.plugins import COMMANDS


def words_to_overrides(words: Sequence[str]) -> list[str]:
    """`replay`, `org/name`, `./dir` and `config.json` are words; the rest are Hydra overrides."""
    overrides: list[str] = []
    models, own = 0, ""
    for position, word in enumerate(words):
        if is_setting(word):
            overrides.append(word)
        elif position == 0 and word in COMMANDS:
            overrides.append(f"command={word}")
            own = getattr(COMMANDS.get(word), "word", "")
        elif position == 1 and own:
            overrides.append(f"{own}={_quoted(word)}")
        elif ("/" in word or word.endswith(".json") or os.path.isdir(word)) and not models:
            from kvpipe.models.config_file import is_path

            models += 1
            key = "path" if is_path(word) else "repo"
            overrides += ["model=hf", f"model.{key}={_quoted(word)}"]
        else:
            raise ConfigError(
                Problem(
                    "command line",
                    f"a command ({', '.join(COMMANDS.names())}), a model (org/name, a folder or a "
                    "config.json), group=choice or key=value",
                    f"'{word}'",
                    "see --help",
                )
            )
    return overrides


def is_setting(word: str) -> bool:
    """An override in Hydra's grammar, not a word."""
    return "=" in word or word.startswith("+") or (word.startswith("~") and "/" not in word)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
