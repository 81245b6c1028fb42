"""YAML as OmegaConf reads and writes it, without importing OmegaConf: for the quick way.

Two things differ from YAML 1.1 as PyYAML has it: `1e6` is a number, and a date is text. Strings
that would read back as something else are written in quotes.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import yaml

_FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
    |\.[0-9_]+(?:[eE][-+][0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_BOOLS = ("true", "false", "yes", "no", "on", "off", "y", "n")
_NOT_TEXT = frozenset({*_BOOLS, "null", "nan", "inf", "infinity"})
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}\Z")
_SETTING = re.compile(r"[a-z][a-z0-9_.]{0,59}=[A-Za-z0-9_./-]{1,59}\Z")  # as YAML: itself


def load_yaml(text: str) -> Any:
    return yaml.load(text, _loader())  # noqa: S506 - a safe loader


def dump_yaml(value: Any) -> str:
    return yaml.dump(
        value, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_dumper()
    )


def dump_sections(values: Mapping[str, Any]) -> str:
    """The same text as `dump_yaml`, where many requests share most of their sections: each is
    written once, and by hand where it has plain words and numbers only."""
    return "".join(_section(key, marshal.dumps(value, 2)) for key, value in values.items())


def dump_words(words: Sequence[str]) -> str:
    """The same text as `dump_yaml` of a list of settings (`group=choice`)."""
    plain = (f"- {word}\n" if _SETTING.match(word) else dump_yaml([word]) for word in words)
    return "".join(plain) or dump_yaml([])


@lru_cache(maxsize=4096)
def _section(key: str, value: bytes) -> str:
    section = marshal.loads(value)
    lines = _by_hand(section) if isinstance(section, dict) and section else None
    return dump_yaml({key: section}) if lines is None else f"{key}:\n{lines}"


def _by_hand(section: Mapping[str, Any]) -> str | None:
    """The lines of a section of scalars; None where one may need quotes, or a form of its own."""
    written = {key: _scalar(value) for key, value in section.items()}
    if None in written.values() or not all(map(_is_word, written)):
        return None
    return "".join(f"  {key}: {text}\n" for key, text in written.items())


def _scalar(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    return value if _is_word(value) else None


def _is_word(text: Any) -> bool:
    """Whether it stands without quotes, and reads back as this text."""
    return isinstance(text, str) and bool(_WORD.match(text)) and text.lower() not in _NOT_TEXT


@lru_cache(maxsize=1)
def _loader() -> Any:
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc,valid-type]
        yaml_implicit_resolvers = {
            key: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
            for key, pairs in base.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Loader


@lru_cache(maxsize=1)
def _dumper() -> Any:
    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        pass

    def text(dumper: Any, data: str) -> Any:
        quoted = data.lower() in _BOOLS or _reads_as_number(data)
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="'" if quoted else None)

    Dumper.add_representer(str, text)
    return Dumper


def _reads_as_number(data: str) -> bool:
    for kind in (int, float):
        try:
            kind(data)
            return True
        except ValueError:
            continue
    return False
