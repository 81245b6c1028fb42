"""One line of a log, searched in time that grows with its length and no faster.

No pattern ever sees a whole line. A phrase is found by its literal words (`str.find`), and a
pattern then reads at most SPAN characters beside them. Every character looked at is counted in
`steps`, so that a test can bound the work without a clock.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

SPAN = 128  # characters beside a phrase that its pattern may read
_NAME = string.ascii_letters + string.digits + "_."
LONGEST_VALUE = 400  # characters of a quoted value (a path)


class Text:
    """A line. steps: characters that searches of it have looked at so far."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.steps = 0

    def find(self, words: str, start: int = 0) -> int:
        """Where the words begin, from `start` on; -1 where they do not stand."""
        at = self.line.find(words, start)
        self.steps += (at if at >= 0 else len(self.line)) - start + 1
        return at

    def each(self, words: str, start: int = 0) -> Iterator[tuple[int, int]]:
        """(begin, end) of every place where the words stand."""
        at = self.find(words, start)
        while at >= 0:
            yield at, at + len(words)
            at = self.find(words, at + len(words))

    def after(self, pattern: re.Pattern[str], end: int) -> re.Match[str] | None:
        """The pattern right after a place; it sees SPAN characters."""
        self.steps += SPAN
        return pattern.match(self.line, end, min(len(self.line), end + SPAN))

    def before(self, pattern: re.Pattern[str], begin: int) -> re.Match[str] | None:
        """The pattern (which ends in `$`) right before a place; it sees SPAN characters."""
        self.steps += SPAN
        return pattern.search(self.line[max(0, begin - SPAN) : begin])

    def word_begins(self, begin: int) -> bool:
        """Whether no letter, digit or underscore stands before a place."""
        return begin == 0 or not (self.line[begin - 1].isalnum() or self.line[begin - 1] in "_-")

    def sentence_begins(self, begin: int) -> int:
        """Where the word around a place begins ("ValueError" of "Error: "), or, where none does,
        what is said there."""
        head = self.line[max(0, begin - SPAN) : begin]
        self.steps += SPAN
        word = len(head) - len(head.rstrip(_NAME))
        if word:
            return begin - word
        ends = [head.rfind(mark) + len(mark) for mark in ("] ", ": ") if mark in head]
        return begin - len(head) + max(ends, default=0)

    def until(self, end: int, closing: str) -> str | None:
        """What stands between a place and a closing character, if that is not far."""
        self.steps += LONGEST_VALUE
        at = self.line.find(closing, end, end + LONGEST_VALUE)
        return self.line[end:at] if at >= 0 else None
