"""The contract of an engine's log: what its lines say, and where a start of it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpipe.logs.phrases import Phrase


@dataclass(frozen=True, kw_only=True)
class LoggedEngine:
    """phrases: what its lines say. starts: words of the lines that a start begins with. settings:
    name of a figure -> (kvpipe's key, its value of what was printed; None: that says nothing).
    pools: names of sizes that are arrays of the cache; those of one rank add up. sums: of other
    sizes that add up, a line a device. errors: words of the lines that tell why it ended. echoes:
    of those among them that only point at another. empty: words of an error that says that nothing
    was left for the cache."""

    name: str
    phrases: tuple[Phrase, ...]
    starts: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, Callable[[Any], Any]]] = field(default_factory=dict)
    pools: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    echoes: tuple[str, ...] = ()
    empty: str = ""
