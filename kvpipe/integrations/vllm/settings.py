"""additional_config {"kvpipe": {...}} -> Settings: what the plug-in is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

GROUPINGS = ("engine", "optimal")


class LeftAlone(Exception):
    """Why the engine's own plan stays; the text is the warning."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """grouping: the engine's own, or the one that holds most tokens. report: kvpipe's capacity
    beside the engine's line. max_groups: block tables at most. price_of_a_group: share of a step's
    time that one table more costs, and so of the tokens that it must bring. slower_at_most: share
    of a step that all further tables may cost together, by that price."""

    grouping: str = "engine"
    report: bool = False
    max_groups: int = 16
    price_of_a_group: float = 0.005
    slower_at_most: float = 0.03


def settings_of(additional_config: object) -> Settings | None:
    """None where kvpipe is not asked; LeftAlone naming every wrong key or value."""
    asked = additional_config.get("kvpipe") if isinstance(additional_config, Mapping) else None
    if asked is None:
        return None
    if not isinstance(asked, Mapping):
        raise LeftAlone(f'"kvpipe": expected an object, got {asked!r}')
    problems = [*_unknown(asked), *_wrong(asked)]
    if problems:
        raise LeftAlone("; ".join(problems))
    return Settings(**asked)


def _unknown(asked: Mapping[str, Any]) -> list[str]:
    known = [field.name for field in fields(Settings)]
    return [
        f'"kvpipe": expected keys {", ".join(known)}, got {name!r}'
        for name in asked
        if name not in known
    ]


def _wrong(asked: Mapping[str, Any]) -> list[str]:
    share = (
        "a share from 0 up to 1",
        lambda value: type(value) in (int, float) and 0 <= value < 1,
    )
    checks: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "grouping": ("engine or optimal", lambda value: value in GROUPINGS),
        "report": ("true or false", lambda value: isinstance(value, bool)),
        "max_groups": ("a whole number from 1", lambda value: type(value) is int and value >= 1),
        "price_of_a_group": share,
        "slower_at_most": share,
    }
    return [
        f'"kvpipe.{name}": expected {expected}, got {asked[name]!r}'
        for name, (expected, is_right) in checks.items()
        if name in asked and not is_right(asked[name])
    ]
