"""Text inside of a picture."""

from __future__ import annotations

from functools import lru_cache
from html import escape

from kvpipe.text.clean import clean


@lru_cache(maxsize=4096)  # names of layers and causes, in every picture of a sweep
def shown(words: str) -> str:
    """Text of a picture: nothing a reader's terminal or browser would obey."""
    return escape(clean(words))
