"""What is said on a command line has bounds, too: Hydra's grammar takes time that grows with the
square of a list's length, and looking for mistakes composes once a setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.errors import ConfigError, Problem

MAX_WORDS = 1_000
MAX_CHARACTERS = 1 << 16  # of a word: a pasted line is one
MAX_MARKS = 4_000  # commas and brackets of a word: two seconds of CPU
SHOWN = 60  # characters of a word that a message repeats


def check_words(words: Sequence[str]) -> None:
    """ConfigError with every word that is too long or no text, and where there are too many."""
    if len(words) > MAX_WORDS:
        raise ConfigError(
            Problem("command line", f"at most {MAX_WORDS:,} settings", f"{len(words):,}")
        )
    if problems := [problem for word in words for problem in _wrong(word)]:
        raise ConfigError(problems)


def _wrong(word: str) -> Iterator[Problem]:
    try:
        word.encode()
    except UnicodeEncodeError:  # bytes of a file's name: they could not be saved in YAML
        yield Problem("command line", "words in UTF-8", repr(word[:SHOWN]), "rename the file")
    key = word.partition("=")[0][:SHOWN]
    if len(word) > MAX_CHARACTERS:
        yield Problem(key, f"at most {MAX_CHARACTERS:,} characters", f"{len(word):,}")
    marks = sum(word.count(mark) for mark in ",[{")
    if marks > MAX_MARKS:
        yield Problem(key, f"at most {MAX_MARKS:,} values, or range(...)", f"{marks:,}")
