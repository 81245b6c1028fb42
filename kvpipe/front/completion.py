"""Shell completion: a command word first, then what Hydra completes (groups, choices, keys)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvpipe.plugins import COMMANDS

_LINE = "COMP_LINE"  # what the shell has of the line so far; Hydra's scripts pass it on


def answered_words(overrides: Sequence[str]) -> str:
    """What stands before Hydra's own answer: fish takes a line each, bash and zsh blanks between.
    Nothing where a script is installed, which is no question."""
    query = next((word for word in overrides if word.startswith("query=")), None)
    if query is None:
        return ""
    apart = "\n" if query == "query=fish" else " "
    return "".join(f"{word}{apart}" for word in command_words())


def command_words() -> list[str]:
    """The commands that the first word of the line may become; and the word is taken off the line,
    in this process's environment, so that Hydra completes the settings after it."""
    line = os.environ.get(_LINE, "")
    words = line.split()
    rest = words[2:] if words[:1] == ["python"] else words[1:]
    is_typed = len(rest) > 1 or line != line.rstrip()  # a blank or another word follows it
    if rest and rest[0] in COMMANDS and is_typed:
        os.environ[_LINE] = line.replace(f" {rest[0]}", "", 1)
        return []
    if len(rest) > 1:
        return []
    return [name for name in COMMANDS.names() if name.startswith(rest[0] if rest else "")]
