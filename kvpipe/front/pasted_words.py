"""`kvpipe doctor vllm serve MODEL --max-model-len 8192 --on h100`: another program's command line
among our words becomes one word."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import islice

from kvpipe.plugins import COMMANDS

_SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)*=")


def pasted_to_one_word(arguments: Sequence[str], own_flags: Sequence[str]) -> list[str]:
    """The arguments, where the first is a command that takes such a line and the second begins one
    (`programs` of the command); settings of ours and our flags stand for themselves."""
    if len(arguments) < 3 or arguments[0] not in COMMANDS:
        return list(arguments)
    if arguments[1] not in getattr(COMMANDS.get(arguments[0]), "programs", ()):
        return list(arguments)
    line: list[str] = []
    ours: list[str] = []
    rest = iter(arguments[1:])
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag in own_flags:
            ours += [word] if equals else [word, *islice(rest, 1)]
        elif _SETTING.match(word):
            ours.append(word)
        else:
            line.append(word)
    return [arguments[0], shlex.join(line), *ours]
