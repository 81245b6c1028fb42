"""Errors of the operating system say what they were about: a file, a folder, or stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named(what: object) -> Iterator[None]:
    """An OSError that names no file (a full disk behind a write does not) names this. A closed pipe
    stays what it is: its reader has seen enough."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(what)) from error


def in_words(error: OSError) -> str:
    """`outputs/x/plan.json: No space left on device`."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename is not None else reason
