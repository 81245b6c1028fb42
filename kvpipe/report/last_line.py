"""The verdict of a command other than run, as the last line of its screen; of a refused run, as its
only one."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.text.lines import Line

STYLES = {"fits": "good", "may not fit": "warning", "does not fit": "bad", "": "good"}
_SAID = {"fits": "IT FITS"}


def headline(error: KvpipeError) -> Iterator[Line]:
    """Of a refusal whose load is known; nothing where it is not. Why, and what to change, stands in
    the error's own lines."""
    if isinstance(error, DoesNotFit) and error.about:
        yield last_line(error.status.replace("_", " "), error.about)


def last_line(word: str, about: str) -> Line:
    """word: fits | may not fit | does not fit."""
    return Line(f"{_SAID.get(word, word.upper())}: {about}", STYLES[word])
