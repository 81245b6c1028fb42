"""YAML as OmegaConf reads and writes it, without importing OmegaConf: for the quick way.

Two things differ from YAML 1.1 as PyYAML has it: `1e6` is a number, and a date is text. Strings
that would read back as something else are written in quotes.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Mapping
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


def load_yaml(text: str) -> Any:
    return yaml.load(text, _loader())  # noqa: S506 - a safe loader


def dump_yaml(value: Any) -> str:
    return yaml.dump(
        value, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_dumper()
    )


def dump_sections(values: Mapping[str, Any]) -> str:
    """The same text as `dump_yaml`, where many requests share most of their sections: each is
    written once."""
    return "".join(_section(key, marshal.dumps(value, 2)) for key, value in values.items())


@lru_cache(maxsize=4096)
def _section(key: str, value: bytes) -> str:
    return dump_yaml({key: marshal.loads(value)})


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
