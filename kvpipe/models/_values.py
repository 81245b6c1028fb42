"""A config.json's values, typed and bounded: one of another type is an error that names its key.

A file is not ours, so nothing of it is used as it stands. `Values` reads one JSON object; an object
inside it is again `Values`, whose problems name the whole path (`rope_scaling.factor`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import MAX_LAYERS

PROBE_HINT = "model.probe=true asks transformers instead"  # said only where that can help
BY_HAND = (
    "write its geometry: a copy of conf/model/llama.yaml as DIR/model/NAME.yaml, "
    "then --config-dir DIR model=NAME"
)
LARGEST = 2**31 - 1  # of any size or length: far beyond every model, and products stay exact
LARGEST_RATIO = 1_000_000


def unreadable(key: str, expected: str, got: object, knob: str = "") -> ConfigError:
    """The error of a config.json that this reader will not guess about. knob: what helps, where
    something does: a wrong value is mended in the file, for transformers refuses it, too."""
    return ConfigError(Problem(f"config.json: {key}", expected, str(got), knob))


def shown(value: object) -> str:
    """A wrong value in a few words: long integers have no decimal form at all."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and abs(value) > 10**20:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


class Values:
    """One JSON object. where: what its keys are prefixed with in problems ("rope_scaling.").

    Null is a missing key: each question says what that means. ConfigError from every question.
    """

    def __init__(self, raw: Mapping[str, Any], where: str = "") -> None:
        self.raw, self.where = raw, where

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands: for the questions below, which check it."""
        return self.raw.get(key, default)

    def written_name(self, key: str) -> str:
        return self.where + key

    def wrong(self, key: str, expected: str, got: object) -> ConfigError:
        return unreadable(self.written_name(key), expected, shown(got))

    def count(self, key: str, default: int | None = None, at_most: int = LARGEST) -> int:
        """A whole number of at least 1; a null or missing key gives `default`, if there is one."""
        value = self.get(key)
        value = default if value is None else value
        if not is_whole(value) or not 1 <= value <= at_most:
            bound = "" if not is_whole(value) or value < 1 else f" and at most {at_most:,}"
            raise self.wrong(key, f"a whole number of at least 1{bound}", value)
        return int(value)

    def layers(self, key: str, default: int | None = None) -> int:
        """A number of layers: each becomes an entry of the plan, so there is an end to it."""
        return self.count(key, default, at_most=MAX_LAYERS)

    def number(self, key: str, default: int = 0, at_most: int = LARGEST) -> int:
        """A whole number of at least 0; null or missing: `default`."""
        value = self.get(key)
        value = default if value is None else value
        if not is_whole(value) or not 0 <= value <= at_most:
            raise self.wrong(key, f"a whole number from 0 to {at_most:,}", value)
        return int(value)

    def choice(self, key: str, choices: tuple[int, ...]) -> int | None:
        """One of a few numbers, or null."""
        value = self.get(key)
        if value is not None and (not is_whole(value) or value not in choices):
            raise self.wrong(key, f"one of {', '.join(map(str, choices))}", value)
        return None if value is None else int(value)

    def ratio(self, key: str, default: float | None = None) -> float | None:
        """A number above 0, finite and of a size that somebody could mean."""
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            return None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= LARGEST_RATIO:  # no comparison of nan holds
            raise self.wrong(key, f"a number above 0 and at most {LARGEST_RATIO:,}", value)
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; null is false, a missing key is `default`."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return bool(value)

    def word(self, key: str, default: str = "") -> str:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.wrong(key, "text", value)
        return value

    def words(self, key: str) -> list[str] | None:
        """A list of text; None where the key is null or missing."""
        value = self._list(key, "text")
        if value is not None and not all(isinstance(entry, str) for entry in value):
            raise self.wrong(key, "a list of text", value)
        return value

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers from 0 on; None where the key is null or missing."""
        value = self._list(key, "whole numbers")
        if value is not None and not all(is_whole(n) and 0 <= n <= LARGEST for n in value):
            raise self.wrong(key, f"a list of whole numbers from 0 to {LARGEST:,}", value)
        if value is not None and len(value) > MAX_LAYERS:
            raise self.wrong(key, f"at most {MAX_LAYERS:,} numbers", f"{len(value):,}")
        return value

    def section(self, key: str) -> Values:
        """The object under a key; an empty one where it is null or missing."""
        value = self.get(key)
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise self.wrong(key, "settings ({...})", value)
        return Values(value, f"{self.written_name(key)}.")

    def _list(self, key: str, of: str) -> list[Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, (list, tuple)):
            raise self.wrong(key, f"a list of {of}", value)
        return None if value is None else list(value)


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
