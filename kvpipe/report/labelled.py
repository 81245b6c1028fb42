"""A label and its text beside it, as the first screens are laid out."""

from __future__ import annotations

from kvpipe.text.lines import Line, whole_words

LABEL = 9  # columns


def labelled(label: str, text: str, width: int, style: str = "") -> list[Line]:
    """Whole words, in as many lines of at most `width` columns as they take."""
    parts = enumerate(whole_words(text, width - LABEL))
    return [Line(f"{label if not n else '':<{LABEL}}{part}", style) for n, part in parts]
