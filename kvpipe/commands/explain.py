"""`kvpipe explain WORD`: what a word of the reports means, and the setting that changes it.

File: explanation.json, of a sweep's jobs: a word is asked for again sooner than its file is found.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from kvpipe.commands.base import Command, CommandOptions
from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.report.words import WORDS, explained
from kvpipe.text.lines import Section, lay_out


class Explain(Command):
    class Options(CommandOptions):
        """about: the word; null lists all."""

        about: str | None

    summary = "What a word of the reports means (peak, null block, out of reach, ...)"
    example = "kvpipe explain peak"
    files = ("explanation.json",)
    word: ClassVar[str] = "command.about"
    leaves: ClassVar[bool] = False
    joins_words: ClassVar[bool] = True  # `null block` needs no quotes

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        words = self._words()
        return Answer(
            status="fits",
            exit_code=0,
            lines=partial(lay_out, [self._section(words)]),
            document={
                "schema": "kvpipe.explanation",
                "schema_version": 1,
                "words": [{"word": w, "text": WORDS[w].text, "see": WORDS[w].see} for w in words],
            },
        )

    def _words(self) -> list[str]:
        said = self.options.about
        if said is None:
            return list(WORDS)
        word = explained(said)
        if word is None:
            hint = did_you_mean(said, WORDS)
            raise ConfigError(Problem("command.about", "a word of the reports", f"'{said}'", hint))
        return [word]

    @staticmethod
    def _section(words: list[str]) -> Section:
        see = [f" ({WORDS[word].see})" if WORDS[word].see else "" for word in words]
        rows = [(word, WORDS[word].text + more) for word, more in zip(words, see, strict=True)]
        return Section(title="kvpipe: words", align="ll", rows=rows)


PLUGIN = Explain
