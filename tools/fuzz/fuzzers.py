"""The fuzzers by name, and how each searches: a case at random, what is wrong with it, made small.

A crash is what is wrong, too: nothing that is read or asked may raise anything but what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from fuzz import invariants, logs, model_files, option_files, requests, words
from fuzz.minimise import fewest, shortest, smallest

LONGEST_SAID = 2000  # characters of a finding


@dataclass(frozen=True, kw_only=True)
class Fuzzer:
    """at_random: a case. wrong_with: "" where it ends as it should. smaller(case, fails): the least
    of it that still fails."""

    at_random: Callable[[Random], Any]
    wrong_with: Callable[[Any], str]
    smaller: Callable[[Any, Callable[[Any], bool]], Any]


FUZZERS = {
    "requests": Fuzzer(
        at_random=requests.at_random, wrong_with=invariants.broken, smaller=smallest
    ),
    "words": Fuzzer(at_random=words.at_random, wrong_with=words.wrong_with, smaller=shortest),
    "options": Fuzzer(
        at_random=option_files.at_random, wrong_with=option_files.wrong_with, smaller=fewest
    ),
    "logs": Fuzzer(at_random=logs.at_random, wrong_with=logs.wrong_with, smaller=fewest),
    "configs": Fuzzer(
        at_random=model_files.config_at_random,
        wrong_with=model_files.config_is_wrong,
        smaller=fewest,
    ),
    "gguf": Fuzzer(
        at_random=model_files.gguf_at_random, wrong_with=model_files.gguf_is_wrong, smaller=fewest
    ),
}


Progress = Callable[[int, int, str], None]


def search(
    fuzzer: Fuzzer, seed: int, cases: Iterable[int], progress: Progress = lambda *_: None
) -> list[str]:
    """The smallest case of each kind that fails, and what is wrong with it.

    cases: their numbers; a case depends on its number and the seed alone. progress: told after each
    its number, how many kinds failed so far, and what was found in it.
    """
    found: dict[str, str] = {}
    for number in cases:
        case = fuzzer.at_random(Random(f"{seed}:{number}"))
        said = said_of(fuzzer, case)
        kind, new = said[:60], ""
        if said and kind not in found:
            least = fuzzer.smaller(case, lambda some, k=kind: said_of(fuzzer, some)[:60] == k)
            new = found[kind] = f"{least!r}: {said_of(fuzzer, least)}"[:LONGEST_SAID]
        progress(number, len(found), new)
    return list(found.values())


def said_of(fuzzer: Fuzzer, case: Any) -> str:
    """What is wrong with a case, in words; an exception by its name and where it was raised."""
    try:
        return fuzzer.wrong_with(case)
    except Exception as error:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = f"{at.tb_frame.f_code.co_filename.rpartition('/')[2]}:{at.tb_lineno}" if at else ""
        return f"{type(error).__name__} at {where}: {error}"
