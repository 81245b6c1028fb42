"""The verdict of a command other than run, as the last line of its screen."""

from __future__ import annotations

from kvpipe.text.lines import Line

STYLES = {"fits": "good", "may not fit": "warning", "does not fit": "bad", "": "good"}
_SAID = {"fits": "IT FITS"}


def last_line(word: str, about: str) -> Line:
    """word: fits | may not fit | does not fit."""
    return Line(f"{_SAID.get(word, word.upper())}: {about}", STYLES[word])
