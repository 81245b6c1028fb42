"""Text inside of a picture."""

from __future__ import annotations

from html import escape

from kvpipe.text.clean import clean


def shown(words: str) -> str:
    """Text of a picture: nothing a reader's terminal or browser would obey."""
    return escape(clean(words))
