"""Flags of `vllm serve` by release: those that a release refuses, and why.

serve_flags.txt has what the parsers of four releases name. A flag that two neighbours have is taken
to be in all between; where they differ, nothing is said. Older releases are judged by the settings'
own table alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kvpipe.engines.serve import FLAGS, SWITCHES_SINCE
from kvpipe.engines.versions import Version, parse_version, written

READ: tuple[Version, ...] = ((0, 17, 0), (0, 28, 0), (0, 32, 0), (0, 33, 0))
_FILE = Path(__file__).with_name("serve_flags.txt")


def refused_flag(flag: str, version: str) -> str:
    """Why `vllm serve` of that release stops at the flag; "" where it takes it, or nobody knows."""
    name, release = _plain(flag), parse_version(version)
    if text := _too_old(name, release, version):
        return text
    if release < READ[0]:
        return ""
    if name not in _table():
        return f"no vLLM that was read has {flag} ({_told(READ)}){_near(name)}"
    since, until = _table()[name]
    if until is not None and release >= until:
        return f"vLLM {version} has no {flag}: it is gone in {_told((until,))}"
    if since is not None and release <= max(each for each in READ if each < since):
        return (
            f"vLLM {version} has no {flag}: of those that were read {_told((since,))} is the first"
        )
    return ""


def is_flag(flag: str) -> bool:
    """Whether some release that was read has it."""
    return _plain(flag) in _table()


def _too_old(name: str, release: Version, version: str) -> str:
    """By the table of the settings' own flags."""
    for flag in FLAGS:
        if flag.name == name and flag.since is not None and release < flag.since:
            sure = "" if flag.certain else ", as far as is known"
            return f"vLLM {version} has no {name}: it is there from {_told((flag.since,))} on{sure}"
    first = SWITCHES_SINCE.get(name)
    if first is not None and release < first:
        return f"vLLM {version} has no {name}: it is there from {_told((first,))} on"
    return ""


def _plain(flag: str) -> str:
    """`--no-x` switches x, `--x.y` sets a part of it, `-O3` is `-O`."""
    name = flag.partition(".")[0].replace("_", "-")
    if name.startswith("-O"):
        return "--optimization-level"
    return f"--{name[5:]}" if name.startswith("--no-") and name not in _table() else name


def _near(name: str) -> str:
    from difflib import get_close_matches  # only where something is wrong

    close = get_close_matches(name, _table(), n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


def _told(releases: tuple[Version, ...]) -> str:
    return ", ".join(written(release) for release in releases)


@cache
def _table() -> Mapping[str, tuple[Version | None, Version | None]]:
    """(first that has it, first that has it no more), None: beyond those that were read."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {name: (_release(since), _release(until)) for name, since, until in rows}


def _release(word: str) -> Version | None:
    return None if word == "-" else parse_version(word)
