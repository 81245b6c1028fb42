"""Our own flags (`--on h100`) -> settings; Hydra's are left as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvpipe.errors import Problem
from kvpipe.front.pasted_words import pasted_to_one_word
from kvpipe.front.read_words import ReadWords
from kvpipe.front.short_keys import FLAGS

# Hydra's. Its parser knows each by its first letters, too.
_HYDRAS = (
    "--help",
    "--hydra-help",
    "--version",
    "--cfg",
    "--resolve",
    "--package",
    "--run",
    "--multirun",
    "--shell-completion",
    "--config-path",
    "--config-name",
    "--config-dir",
    "--experimental-rerun",
    "--info",
)
_LEAST_LETTERS = 5  # dashes included: `--co` could be three of them
_VLLMS_SHORT = ("-tp", "-dp", "-dcp", "-ep", "-q")  # others are Hydra's, which join (`-mc`)


def flags_to_words(arguments: Sequence[str]) -> list[str]:
    """The arguments with our own flags as settings; ConfigError with all that is wrong in them."""
    return read_flags(arguments).right()


def read_flags(arguments: Sequence[str]) -> ReadWords:
    """Our own flags (`--on h100`, `--on=h100`) become settings, and another program's whole line is
    one word; what is unknown is left out, and told."""
    words: list[str] = []
    problems: list[Problem] = []
    said: dict[str, str] = {}
    rest = list(reversed(pasted_to_one_word(arguments, tuple(FLAGS))))
    while rest:
        argument = rest.pop()
        flag, equals, value = argument.partition("=")
        if flag in FLAGS:
            given = value if equals else _value(rest)
            if given:
                said[flag] = given
                words.append(f"{FLAGS[flag]}={given}")
            else:
                problems.append(Problem(flag, "a value", "''", f"sets {FLAGS[flag]}"))
        elif _is_unknown(flag):
            from kvpipe.front.unknown_flags import takes_value, unknown_flag

            value = value if equals or not takes_value(flag, rest[-1:]) else rest.pop()
            problems.append(unknown_flag(flag, value))
        else:
            words.append(argument)
    return ReadWords(words=tuple(words), problems=(*problems, *_said_otherwise(said, words)))


def _value(rest: list[str]) -> str:
    """What stands behind a flag, taken from the rest; "" where that is the next flag."""
    is_flag = not rest or (rest[-1].startswith("-") and not rest[-1][1:2].isdigit())
    return "" if is_flag else rest.pop()


def _is_unknown(flag: str) -> bool:
    """Whether neither Hydra nor we have it."""
    if not flag.startswith("--"):
        return flag in _VLLMS_SHORT
    is_begun = len(flag) >= _LEAST_LETTERS and any(name.startswith(flag) for name in _HYDRAS)
    return flag not in _HYDRAS and not is_begun


def _said_otherwise(said: Mapping[str, str], words: Sequence[str]) -> Iterator[Problem]:
    """Where a flag says one thing and another word of the same setting another."""
    for flag, value in said.items():
        others = [word for word in words if word.partition("=")[0] == FLAGS[flag]]
        if wrong := [word for word in others if word.partition("=")[2] != value]:
            got = f"'{value}' and {wrong[0]}"
            yield Problem(flag, f"to be said once (it sets {FLAGS[flag]})", got)
