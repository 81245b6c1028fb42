"""What a long answer is at while it is made: one line of a terminal, written over, then gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from kvpipe.text.clean import clean

Tell = Callable[[str], None]


def silent(_: str) -> None:
    """Tells nobody."""


@contextmanager
def meanwhile(stream: TextIO | None) -> Iterator[Tell]:
    """A function that shows one line in place of the line before; nothing is left of it. Where the
    stream is no terminal it writes nothing."""
    if stream is None or not stream.isatty():
        yield silent
        return
    width = shutil.get_terminal_size((80, 24)).columns - 1  # a full line would begin the next

    def tell(text: str) -> None:
        stream.write(f"\r{clean(text)[:width]:<{width}}\r")
        stream.flush()

    try:
        yield tell
    finally:
        tell("")
