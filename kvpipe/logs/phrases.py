"""What a log says, as phrases: words that stand in a line, and the figures beside them.

An engine is a list of phrases (`engines/`). A phrase names what its figures are; how lines of
several ranks and starts are put together is `starts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvpipe.logs.text import Text
from kvpipe.text.figures import GIB, MIB

# What only looks like a number is caught, too: it is refused with its line.
SIZE = re.compile(r"(-?[\d.]{1,110}) ?(?:GiB|GB)")  # powers of two, whichever way they are written
FREE = re.compile(r"(-?[\d.]{1,110})(?: ?GiB)?/")  # "9.87/22.05 GiB"
SIZE_BEFORE = re.compile(r"(-?[\d.]{1,110}) ?(?:GiB|GB)$")
SIZE_OF = re.compile(r"(-?[\d.]{1,60})/(-?[\d.]{1,60})\) GiB for KV cache")
SIZE_MIB = re.compile(r" {0,12}(-?[\d.]{1,100}) ?MiB")
BYTES = re.compile(r"(\d{1,120})")
COUNT = re.compile(r"([\d,]{1,120})")
RATIO = re.compile(r"(\d{1,120}(?:\.\d{1,40})?|\.\d{1,40})")  # ends before a sentence's full stop
PADDING = re.compile(r"([\d,]{1,40}) padding layers, may waste at most ([\d.]{1,40})%")
GROUPS = re.compile(r"\d{1,9} groups \[([\d, ]{1,4000})\]")
WORD = re.compile(r"(?:torch\.)?([A-Za-z][\w.]{0,40})")
# Methods that store a cache: a model of its own, or prediction layers of the file itself.
DRAFT = re.compile(
    r"'((?:eagle3?|draft_model)', model='[^']{1,4096}(?=')|(?:\w{1,40}_)?mtp'(?=, model='))"
)
RELEASE = re.compile(r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:[.+-]?[A-Za-z][\w.+-]{0,60})?)")
TRUTH = re.compile(r"(True|False|true|false)")
_OVERLONG = re.compile(r"-?[\d.,]{110,}")
_NUMERIC = ("size", "bytes", "count", "ratio")


@dataclass(frozen=True, kw_only=True)
class Phrase:
    """words: literal. pattern: of the value after them (before: before them). names: of its groups.

    kind: size | bytes | count | ratio | word | release | truth | regrouped (a word: warnings of the
    plan before it count no more). unit: bytes of a size. within:
    words that must stand earlier in the line. closing: the value ends at this character instead
    (paths). lone: no letter, digit or underscore stands right before the words. every: each place
    counts, not the first one. rare: words of the value, where its own words stand in many lines.
    """

    words: str
    names: tuple[str, ...]
    kind: str
    pattern: re.Pattern[str] | None = None
    unit: int = GIB
    within: str = ""
    closing: str = ""
    before: bool = False
    lone: bool = False
    every: bool = False
    rare: str = ""

    @property
    def trigger(self) -> str:
        """Words without which a line cannot have this phrase."""
        return self.rare or self.within or self.words

    def values(self, text: Text) -> Iterator[tuple[int, tuple[str | None, ...]]]:
        """(where the phrase begins, its values) for each place that has them."""
        start = 0
        if self.within:
            start = text.find(self.within)
            if start < 0:
                return
        for begin, end in text.each(self.words, start):
            if self.lone and not text.word_begins(begin):
                continue
            found = self._value(text, begin, end)
            if found is not None:
                yield begin, found
                if not self.every:
                    return

    def _value(self, text: Text, begin: int, end: int) -> tuple[str | None, ...] | None:
        if self.closing:
            value = text.until(end, self.closing)
            return (value,) if value else None
        assert self.pattern is not None
        match = text.before(self.pattern, begin) if self.before else text.after(self.pattern, end)
        can_be_overlong = match is None and self.kind in _NUMERIC and not self.before
        if can_be_overlong and (overlong := text.after(_OVERLONG, end)):
            raise ValueError(overlong[0])
        return match.groups() if match else None


def size(words: str, name: str, within: str = "", before: bool = False) -> Phrase:
    """ "Available KV cache memory: 3.81 GiB" (before: "3.81 GiB for weights")."""
    pattern = SIZE_BEFORE if before else SIZE
    return Phrase(
        words=words, names=(name,), kind="size", pattern=pattern, within=within, before=before
    )


def size_mib(words: str, name: str, within: str = "") -> Phrase:
    return Phrase(
        words=words, names=(name,), kind="size", pattern=SIZE_MIB, unit=MIB, within=within
    )


def count(words: str, name: str, within: str = "", lone: bool = False, rare: str = "") -> Phrase:
    """ "GPU KV cache size: 122,080 tokens"."""
    return Phrase(
        words=words, names=(name,), kind="count", pattern=COUNT, within=within, lone=lone, rare=rare
    )


def ratio(words: str, name: str, within: str = "") -> Phrase:
    return Phrase(words=words, names=(name,), kind="ratio", pattern=RATIO, within=within)


def release(words: str, within: str = "") -> Phrase:
    return Phrase(words=words, names=("version",), kind="release", pattern=RELEASE, within=within)


def argument(
    key: str, name: str, kind: str, within: str = "", quoted_dict: bool = True
) -> tuple[Phrase, ...]:
    """A setting as engines echo it: `key=8` in a configuration, `'key': 8` in a dictionary.

    kind: count | ratio | word | truth | path.
    """
    patterns: Mapping[str, re.Pattern[str]] = {
        "count": COUNT, "ratio": RATIO, "word": WORD, "truth": TRUTH
    }  # fmt: skip
    written = [(f"{key}=", True), (f"'{key}': ", False)] if quoted_dict else [(f"{key}=", True)]
    found: list[Phrase] = []
    for words, lone in written:
        if kind == "path":
            found += [
                Phrase(words=f"{words}{q}", names=(name,), kind="path", closing=q,
                       within=within, lone=lone)
                for q in "'\""
            ]  # fmt: skip
            continue
        # Words may stand in quotes.
        quotes = ("", "'", '"') if kind == "word" else ("",)
        found += [
            Phrase(words=f"{words}{q}", names=(name,), kind=kind, pattern=patterns[kind],
                   within=within, lone=lone)
            for q in quotes
        ]  # fmt: skip
    return tuple(found)
