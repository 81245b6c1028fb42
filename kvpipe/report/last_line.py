"""The verdict of a command other than run, as the last line of its screen; of a refused run, as its
only one."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.text.lines import Line

STYLES = {"fits": "good", "may not fit": "warning", "does not fit": "bad", "": "good"}
_SAID = {"fits": "IT FITS"}


_REFUSED = " (not at the best value)"  # and so the exit code is 1


def headline(error: KvpipeError) -> Iterator[Line]:
    """Of a refusal whose load is known; nothing where it is not. Why, and what to change, stands in
    the error's own lines."""
    if isinstance(error, DoesNotFit) and error.about:
        yield last_line(error.status.replace("_", " "), error.about, serves=False)


def last_line(word: str, about: str, *, serves: bool = True) -> Line:
    """word: fits | may not fit | does not fit. serves: by the best value of the memory."""
    said = _SAID.get(word, word.upper())
    if word == "may not fit" and not serves:
        said += _REFUSED
    return Line(f"{said}: {about}", STYLES[word])
