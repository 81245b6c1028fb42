"""`kvpipe doctor vllm serve MODEL --max-model-len 8192 --on h100`: another program's command line
among our words becomes one word. `NAME=VALUE` and `env` before it are parts of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import islice

from kvpipe.plugins import COMMANDS

_SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)*=")
_ENVIRONMENT = re.compile(r"(?:[A-Z_][A-Z0-9_]*|[a-z]{2,5}_proxy)=")
_BEFORE = ("$", "env", "exec", "nohup", "sudo", "time")


def pasted_to_one_word(arguments: Sequence[str], own_flags: Sequence[str]) -> list[str]:
    """The arguments, where the first is a command that takes such a line and the second begins one
    (`programs` of the command); settings of ours and our flags stand for themselves."""
    if len(arguments) < 3 or arguments[0] not in COMMANDS:
        return list(arguments)
    if not _begins(arguments[1:], arguments[0]):
        return list(arguments)
    line: list[str] = []
    ours: list[str] = []
    rest = iter(arguments[1:])
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag in own_flags:
            ours += [word] if equals else [word, *islice(rest, 1)]
        elif _SETTING.match(word) and not _ENVIRONMENT.match(word):
            ours.append(word)
        else:
            line.append(word)
    return [arguments[0], shlex.join(line), *ours]


def is_pasted_line(word: str, command: str) -> bool:
    """Whether one word of ours is such a line as a whole, for a command that takes one; no setting
    of ours begins as an environment does."""
    if _ENVIRONMENT.match(word):
        return hasattr(COMMANDS.get(command), "programs")
    try:
        words = shlex.split(word)
    except ValueError:  # a quote that does not end
        words = word.split()
    return len(words) > 1 and _begins(words, command)


def without_secrets(word: str, command: str) -> str:
    """The word of a command that takes such a line: it is kept with the job's settings."""
    if not hasattr(COMMANDS.get(command), "programs"):
        return word
    from kvpipe.text.secrets import masked_text

    return masked_text(word)


def _begins(words: Sequence[str], command: str) -> bool:
    """Whether one of the command's programs stands first, but for the environment that it gets."""
    programs = getattr(COMMANDS.get(command), "programs", ())
    first = (word for word in words if word not in _BEFORE and not _ENVIRONMENT.match(word))
    return next(first, "").rpartition("/")[2] in programs
