"""A flag that nobody here knows -> what to say instead.

People have vLLM's flags in their fingers: each is told the setting that it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from kvpipe.engines.pasted import KEYS, TURNED
from kvpipe.engines.serve_flags import is_flag
from kvpipe.errors import Problem
from kvpipe.front.short_keys import FLAGS, SHORT_KEYS

_NUMBER = re.compile(r"[0-9.][0-9a-zA-Z.]*")
_DOCTOR = '`kvpipe doctor "vllm serve ..."` reads vLLM\'s own line'


def takes_value(flag: str, following: Sequence[str]) -> bool:
    """Whether the word behind it (none: there is none) is its value, and no word of its own."""
    word = next(iter(following), "-")
    if word.startswith("-") or "=" in word:
        return False
    return flag in KEYS or _nearly_ours(flag) != "" or _NUMBER.fullmatch(word) is not None


def unknown_flag(flag: str, value: str = "") -> Problem:
    """value: what stood behind it ("": nothing)."""
    knob = _instead(flag, value) or f"ours are {', '.join(FLAGS)}; settings are key=value"
    return Problem("command line", "a known flag", f"'{flag}'", f"{knob}; see --help")


def _instead(flag: str, value: str) -> str:
    if ours := _nearly_ours(flag):
        return f"did you mean {ours}?"
    if said := _as_ours(flag, value):
        return f"that is vLLM's: say {said}; {_DOCTOR}"
    if is_flag(flag):
        return f"that is vLLM's, and no setting here; {_DOCTOR}"
    theirs = [name for name in (*TURNED, *KEYS, "--enable-lora") if name.startswith("--")]
    near = sorted((name for name in theirs if name.endswith(flag[1:])), key=len)
    near = near[:1] or get_close_matches(flag, theirs, n=1, cutoff=0.75)
    if not near:
        return ""
    said = _as_ours(near[0], value)
    return f"did you mean vLLM's {near[0]}? {f'say {said}; ' if said else ''}{_DOCTOR}"


def _nearly_ours(flag: str) -> str:
    """Our flag of nearly that name ("": none)."""
    ours = {name.lstrip("-"): name for name in FLAGS}
    near = get_close_matches(flag.lstrip("-"), ours, n=1)
    return ours[near[0]] if near else ""


def _as_ours(flag: str, value: str) -> str:
    """The setting that a flag of vLLM's stands for, in words of ours ("": none)."""
    if flag in TURNED:
        return "=".join(TURNED[flag])
    key = KEYS.get(flag, "")
    if not key or ("." not in key and key not in ("weights", "model")):
        return ""
    flags = {setting: f"{word} " for word, setting in FLAGS.items()}
    short = {setting: f"{word}=" for word, setting in SHORT_KEYS.items()}
    return f"{flags.get(key) or short.get(key) or f'{key}='}{value or '...'}"
