"""What people call a model or a device -> the name of its option file in conf/.

An option file is known by its own name, by the Hub name in it (`name:`), and by what a line
`# also: h100, h100-sxm` in its head comment says (a Hub name, too: other weights of the same
config). Spelling is forgiven (case, dashes, dots); nothing is guessed: a name that fits two files
is refused with both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kvpipe.errors import ConfigError, Problem
from kvpipe.request.confdir import CONF_DIR

_NAME = re.compile(r"^name: *(\S+)", re.MULTILINE)
_ALSO = re.compile(r"^# also: *(.+)", re.MULTILINE)
# Versions of one model that differ in their weights' values only, not in what they keep.
_SAME_CACHE = re.compile(r"[-_](instruct|it|pt|base|hf)$", re.IGNORECASE)
_MAKERS = re.compile(r"^(nvidia|amd|geforce|tesla|instinct|rtx)[-_ ]*", re.IGNORECASE)
_SIZE = re.compile(r"[0-9]+b")
_HEAD = 1000  # characters: the comment and the first keys


def option_named(group: str, said: str, may_begin: bool = False) -> str | None:
    """The option file of `group` that `said` means, or None. ConfigError where two do. may_begin:
    whether it may be the first words of a name, as people shorten them."""
    if os.path.isfile(CONF_DIR / group / f"{said}.yaml"):  # False for names too long for a file
        return said
    wanted = _spelling(said)
    if not wanted:
        return None
    found = [path.stem for path in _files(group) if wanted in _spellings(path)]
    found = found or _of_words(group, said, may_begin)
    if len(found) > 1:
        names = ", ".join(_typed(group, stem) for stem in found)
        got = f"'{said}', which stands for {len(found)} names"
        raise ConfigError(Problem(group, "a whole name", got, f"say one of {names}"))
    return found[0] if found else None


def _of_words(group: str, said: str, may_begin: bool) -> list[str]:
    """Files whose names have the same words and numbers (`phi4`, `gemma3:27b`); where none has, and
    they may be shortened, those whose names begin with them (`mixtral-8x7b`, `qwen3-next-80b`)."""
    wanted = _words(said)
    by_file = {path.stem: [_words(name) for name in _names(path)] for path in _files(group)}
    same = [stem for stem, names in by_file.items() if wanted in names]
    if same or not may_begin or not wanted:
        return same
    return [
        stem
        for stem, names in by_file.items()
        if any(name[: len(wanted)] == wanted for name in names)
    ]


def _typed(group: str, stem: str) -> str:
    """As people write an option file's name, where that means it and no other."""
    for name in map(str.casefold, _names(CONF_DIR / group / f"{stem}.yaml")):
        if [p.stem for p in _files(group) if _spelling(name) in _spellings(p)] == [stem]:
            return name
    return stem


def near_names(group: str, said: str) -> list[str]:
    """Option files of nearly that name, the nearest first; at most three."""
    from difflib import get_close_matches  # only when something went wrong

    known = {spelling: path.stem for path in _files(group) for spelling in _spellings(path)}
    wanted = _spelling(said)
    longer = [each for each in known if wanted and _loose(each).startswith(_loose(wanted))]
    near = [*sorted(longer, key=len), *get_close_matches(wanted, known, n=6, cutoff=0.75)]
    stems = [known[spelling] for spelling in near] or _sharing_words(group, said)
    return list(dict.fromkeys(stems))[:3]


def _sharing_words(group: str, said: str) -> list[str]:
    """Option files of which a name has a word and the size of this one (`deepseek-llama-70b` and
    `Llama-3.3-70B`), those that share most first."""
    wanted, sizes = set(_words(said)), set(_SIZE.findall(said.casefold()))
    shared: dict[str, int] = {}
    for path in _files(group):
        for name in _names(path):
            both = wanted.intersection(_words(name))
            if sizes.intersection(_SIZE.findall(name.casefold())) and any(
                len(word) > 2 and word.isalpha() for word in both
            ):
                shared[path.stem] = max(len(both), shared.get(path.stem, 0))
    return sorted(shared, key=lambda stem: -shared[stem])


def hub_name_is_shipped(said: str) -> str | None:
    """The model preset of exactly this Hub name (`org/name`), its own or one that it is also of."""
    wanted = said.casefold()
    return next((p.stem for p in _files("model") if wanted in _hub_names(_head(p))), None)


def is_name_of(preset: str, said: str) -> bool:
    """Whether a preset has this Hub name itself, not also."""
    match = _NAME.search(_head(CONF_DIR / "model" / f"{preset}.yaml"))
    return bool(match and match[1].casefold() == said.casefold())


def _hub_names(head: str) -> list[str]:
    names = [match[1] for match in (_NAME.search(head),) if match]
    names += [name.strip() for name in _others(head) if "/" in name]
    return [name.casefold() for name in names]


def _others(head: str) -> list[str]:
    match = _ALSO.search(head)
    return match[1].split(",") if match else []


def _files(group: str) -> list[Path]:
    return sorted((CONF_DIR / group).glob("*.yaml"))


@cache  # shipped files do not change while we run
def _head(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_HEAD)


def _spellings(path: Path) -> Iterator[str]:
    yield _spelling(path.stem)
    yield from map(_spelling, _names(path))


def _names(path: Path) -> Iterator[str]:
    """By which others call it; of option files without any, the file's own."""
    head = _head(path)
    names = [match[1] for match in (_NAME.search(head),) if match] + _others(head)
    for name in names or [path.stem]:
        yield name.strip().rpartition("/")[2]


def _words(name: str) -> list[str]:
    plain = _MAKERS.sub("", _SAME_CACHE.sub("", name.strip().casefold()))
    return re.findall(r"[a-z]+|[0-9]+", plain)


def _spelling(name: str) -> str:
    """Without case, maker, separators and a memory's unit: `A100-40GB`, `a100_40` -> `a10040`.

    A separator between a letter and a digit counts: `llama-3-70b` is not `llama3_70b`, which are
    two models.
    """
    plain = _MAKERS.sub("", _SAME_CACHE.sub("", name.strip().casefold()))
    plain = re.sub(r"(?<=\d)gb$", "", plain)
    plain = re.sub(r"(?<=[a-z])[-_. ](?=\d)", "+", plain)
    return re.sub(r"[-_. ]", "", plain)


def _loose(spelling: str) -> str:
    """Without the mark of a separator between a letter and a digit."""
    return spelling.replace("+", "")
