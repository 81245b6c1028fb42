"""Text inside of a picture."""

from __future__ import annotations

from functools import lru_cache

from kvpipe.text.clean import clean

# As html.escape, which imports every entity there is.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


@lru_cache(maxsize=4096)  # names of layers and causes, in every picture of a sweep
def shown(words: str) -> str:
    """Text of a picture: nothing a reader's terminal or browser would obey."""
    return clean(words).translate(_ESCAPED)
