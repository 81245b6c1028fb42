"""Secrets in a command line, put out of sight before anything of it is shown or kept.

Values of names such as HF_TOKEN or --api-key become `$HF_TOKEN`, `$API_KEY`: a shell still fills
them in, and nobody who reads the line learns them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

# Flags are told by their last word: --max-num-batched-tokens and --tokenizer name no secret.
_FLAG = re.compile(r"--?(?:[a-z0-9]+[-_])*(?:api)?(?:token|key|secret|password|passwd)", re.I)
_VARIABLE = re.compile(r"(?:-e|--env=)?([A-Za-z_][A-Za-z0-9_]*)=(.+)", re.DOTALL)
_SECRET = re.compile(r"TOKEN(?!S|IZ)|KEY(?!S)|SECRET|PASSWORD|PASSWD", re.I)
_SHELLS = re.compile(r"\$\w+|\$\{\w+\}|\$\(.*\)")  # what a shell fills in is no secret yet


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of one line; those that are no secret as they are."""
    kept: list[str] = []
    flag, values = "", 0  # whose values come next, and how many came
    for word in words:
        name, equals, value = word.partition("=")
        if _FLAG.fullmatch(name):
            flag, values = "" if equals else name, 0
            kept.append(f"{name}={_instead(name, value)}" if value else word)
        elif flag and not word.startswith("-") and _is_value(flag, values, word):
            values += 1
            kept.append(_instead(flag, word))
        else:
            flag = ""
            kept.append(_variable(word))
    return kept


def _is_value(flag: str, before: int, word: str) -> bool:
    """One follows a flag; of keys several may, of which none is a model or a path."""
    return not before or (flag.endswith("key") and "/" not in word)


def masked_text(text: str) -> str:
    """The same of lines as a shell reads them; a text without secrets is left to the letter."""
    lines = text.replace("\\\r\n", " ").replace("\\\n", " ").split("\n")
    masked = [_line(line) for line in lines]
    return text if masked == lines else "\n".join(masked)


def _line(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that does not end
        words = line.split()
    masked = masked_words(words)
    return line if masked == words else shlex.join(masked)


def _variable(word: str) -> str:
    match = _VARIABLE.fullmatch(word)
    if match is None or not _SECRET.search(match[1]):
        return word
    return f"{word[: match.start(2)]}{_instead(match[1], match[2])}"


def _instead(name: str, value: str) -> str:
    plain = name.lstrip("-").replace("-", "_").upper()
    return value if _SHELLS.fullmatch(value) else f"${plain}"
