"""What a library warns of (Hydra, of a file's defaults), as a line of ours: not Python's two lines
with a path inside the library."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def warnings_as_lines(say: Callable[[Sequence[str]], None]) -> Iterator[None]:
    """Inside, each warning that Python would show is told to `say` as one line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say([" ".join(str(message).split())])

    before = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
