"""SIGINT and SIGTERM as one exception, so that what is done can still be told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM: not an Exception, so that no job takes it for its own failure."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Inside, both signals raise Stopped. Only a process's first thread can say so."""

    def stop(number: int, frame: object) -> NoReturn:
        raise Stopped(number)

    before = {}
    with suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
