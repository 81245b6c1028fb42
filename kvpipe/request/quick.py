"""A plain request, composed without Hydra: the same values, or None where Hydra has to say.

Importing and asking Hydra is half of a short run. Most requests are shipped option files and plain
values, and Hydra's own rules for these are few: options in the order of config.yaml's defaults,
each merged into its section; what the command line chose wins over an `override` in an option file;
keys last. Anything else (an unknown name or key, a list, an interpolation of more than one name,
`+`, `~`, hydra.*, a value of an unusual kind) is left to Hydra, which also finds every wrong name.
tests/test_quick.py composes every shipped option and thousands of random requests both ways.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.plain_yaml import load_yaml

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})\Z")
_FRACTION = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+\Z")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*\Z")
# Several of Hydra's words, which it joins to a string: a path, a name on the Hub, a release.
_TEXT = re.compile(r"(\.?/)?[A-Za-z0-9_]+([/.-][A-Za-z0-9_]+)*\Z")
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+){2,3}\Z")
_NUMBER_LIKE = re.compile(r"[0-9_.eE+-]*\Z|[-+]?(inf|nan)\Z", re.IGNORECASE)
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_REFERENCE = re.compile(r"\$\{([a-z_][a-z_0-9.]*)\}\Z")
_GLOBAL = "# @package _global_"


class _LeftToHydra(Exception):
    """The request says something that is not plain."""


def quick_compose(overrides: Sequence[str]) -> dict[str, Any] | None:
    """The values that Hydra would compose, interpolations resolved; None where it must be asked."""
    try:
        settings = _split(overrides)
        groups = dict(_defaults(_primary()))
        said = {key: value for key, value in settings.items() if key in groups}
        chosen = _of_choices(tuple(said.items()))
        config: dict[str, Any] = marshal.loads(chosen.values)
        for key, written in settings.items():
            if key not in said:
                _set(config, key, _value(written))
        for *parents, last in chosen.references:
            at = _at(config, parents)
            at[last] = _referred(config, at[last])
        return config
    except _LeftToHydra:
        return None


def quick_choices(overrides: Sequence[str]) -> dict[str, Any] | None:
    """What the options alone compose to, without the settings of single keys."""
    groups = dict(_defaults(_primary()))
    return quick_compose([each for each in overrides if each.partition("=")[0] in groups])


def quick_folder(kind: str = "run") -> Path:
    """Where config.yaml puts a run: outputs/<date>/<time>."""
    now = datetime.now()
    return Path("outputs") / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}"


def _split(overrides: Sequence[str]) -> dict[str, str]:
    """key -> value as written; each key once."""
    settings: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or key in settings or not re.fullmatch(r"[a-z_][a-z_0-9.]*", key):
            raise _LeftToHydra
        settings[key] = value
    return settings


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """What options compose to, before keys are set. values: each request gets a copy of its own.
    references: where interpolations stand."""

    values: bytes
    references: tuple[tuple[Any, ...], ...]


@lru_cache(maxsize=256)  # jobs of a sweep that set keys choose the same options
def _of_choices(said: tuple[tuple[str, str], ...]) -> _Chosen:
    chosen, order = _choices(dict(said))
    config: dict[str, Any] = {}
    for group in order:
        text = _text(group, chosen[group])
        values = _values(group, chosen[group])
        if text.startswith(_GLOBAL):
            _merge(config, values)
        else:
            _merge(config.setdefault(group, {}), values)
    return _Chosen(values=marshal.dumps(config), references=tuple(_references(config)))


def _choices(said: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The option of each group, and the groups in order: config.yaml's, then what chosen option
    files override, then the command line's, which wins."""
    order = [group for group, _ in _defaults(_primary())]
    chosen = dict(_defaults(_primary()))
    if not all(_WORD.match(value) for value in said.values()):
        raise _LeftToHydra
    chosen |= said
    for group in order:  # a later option file's override wins over an earlier one's
        for other, option in _overrides(group, chosen[group]):
            if other not in chosen:
                raise _LeftToHydra
            if other not in said:
                if order.index(other) > order.index(group):
                    raise _LeftToHydra  # Hydra would refuse, or has an order of its own
                chosen[other] = option
    return chosen, order


@lru_cache(maxsize=1)
def _primary() -> Mapping[str, Any]:
    return load_yaml((CONF_DIR / "config.yaml").read_text(encoding="utf-8")) or {}


def _defaults(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(group, option) of a defaults list, Hydra's own groups left out."""
    for entry in config.get("defaults", ()):
        if isinstance(entry, dict):
            ((group, option),) = entry.items()
            if not group.startswith("override "):
                yield group, option


@lru_cache(maxsize=4096)
def _text(group: str, option: str) -> str:
    try:
        return (CONF_DIR / group / f"{option}.yaml").read_text(encoding="utf-8")
    except OSError:
        raise _LeftToHydra from None


def _option(group: str, option: str) -> dict[str, Any]:
    loaded: dict[str, Any] = marshal.loads(_parsed(group, option))
    return loaded


@lru_cache(maxsize=4096)
def _parsed(group: str, option: str) -> bytes:
    """A file's values, parsed once: each request gets a copy of its own, which it changes."""
    loaded = load_yaml(_text(group, option))
    if not isinstance(loaded, dict):
        raise _LeftToHydra
    return marshal.dumps(loaded)


def _overrides(group: str, option: str) -> Iterator[tuple[str, str]]:
    """What an option file, or one that it starts from, chooses in other groups."""
    for entry in _option(group, option).get("defaults", ()):
        if isinstance(entry, dict):
            ((said, value),) = entry.items()
            match = re.fullmatch(r"override /([a-z_]+)(?:@_global_\.([a-z_]+))?", said)
            if match is None or match[2] not in (None, match[1]):
                raise _LeftToHydra
            yield match[1], value
        elif entry != "_self_":
            yield from _overrides(group, entry)


def _values(group: str, option: str) -> dict[str, Any]:
    """An option file merged onto those that it starts from."""
    loaded = _option(group, option)
    starts = [entry for entry in loaded.pop("defaults", ()) if isinstance(entry, str)]
    values: dict[str, Any] = {}
    for entry in starts if "_self_" in starts else [*starts, "_self_"]:
        _merge(values, loaded if entry == "_self_" else _values(group, entry))
    return values


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    """A known key that holds no section."""
    *parents, last = key.split(".")
    at: Any = config
    for parent in parents:
        at = at.get(parent) if isinstance(at, dict) else None
    if not isinstance(at, dict) or last not in at or isinstance(at[last], dict | list):
        raise _LeftToHydra
    at[last] = value


def _value(written: str) -> Any:
    """A plain value as Hydra's grammar reads it."""
    if _WHOLE.match(written):
        return int(written)
    if _FRACTION.match(written):
        return float(written)
    if written.lower() in _CONSTANTS:
        return _CONSTANTS[written.lower()]
    if _TEXT.match(written) and not _NUMBER_LIKE.match(written):
        return written
    if _RELEASE.match(written):
        return written
    raise _LeftToHydra


def _references(node: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Where a text refers to another key, or to nothing that it may."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _references(value, *path, key)
    elif isinstance(node, str) and ("${" in node or node == "???"):
        yield path


def _referred(config: Mapping[str, Any], text: Any) -> Any:
    """`${section.key}` by what stands there; a value that was set instead, as it is."""
    if not isinstance(text, str) or ("${" not in text and text != "???"):
        return text
    match = _REFERENCE.match(text)
    found = _at(config, match[1].split(".") if match else [""])
    if isinstance(found, dict | list | str):
        raise _LeftToHydra
    return found


def _at(config: Any, path: Sequence[Any]) -> Any:
    for part in path:
        if not isinstance(config, list) and not (isinstance(config, dict) and part in config):
            raise _LeftToHydra
        config = config[part]
    return config
