"""A run's values come from YAML and the command line: interpolations may not reach elsewhere.

A saved config must give the same run tomorrow and on another machine, and a file from somebody else
must not read the environment into a report. What is refused is what an interpolation resolves to
(`${${a}:HOME}` with `a: oc.env` too), so the refusal stands where OmegaConf looks a resolver up.
The number and the length of what is put in have bounds: eight lines that name one another twice
would else be as long as memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf.base import Container
from omegaconf.basecontainer import BaseContainer

from kvpipe.errors import ConfigError, Problem

# Resolvers that compute from the config alone.
PURE = ("oc.create", "oc.decode", "oc.deprecated", "oc.dict.keys", "oc.dict.values", "oc.select")
MAX_INTERPOLATIONS = 400
MAX_CHARACTERS = 1 << 16

_KNOB = "write the value"


@contextmanager
def own_values_only() -> Iterator[None]:
    """Inside, an interpolation that reaches outside the config is noted, and gives an empty text.

    ConfigError at the end, with all of them; at once when the bounds are passed.
    """
    problems: dict[Problem, None] = {}
    resolvers, resolve = BaseContainer._resolvers, Container._resolve_node_interpolation
    BaseContainer._resolvers = {
        name: resolver if name in PURE else _refusing(name, resolver, problems)
        for name, resolver in resolvers.items()
    }
    Container._resolve_node_interpolation = _bounded(resolve)  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseContainer._resolvers = resolvers
        Container._resolve_node_interpolation = resolve  # type: ignore[method-assign]
        if problems:
            raise ConfigError(problems)


def _refusing(name: str, resolver: Any, problems: dict[Problem, None]) -> Any:
    """Stands in for a resolver; its arguments are OmegaConf's. Hydra's own section (the date in an
    output folder's name) is no value of the run: the guard says who may write there."""

    def refuse(root: Any, parent: Any, node: Any, arguments: Any, texts: Any) -> Any:
        key = str(node._get_full_key(None)) or "configuration"
        if key.startswith("hydra."):
            return resolver(root, parent, node, arguments, texts)
        got = f"'${{{name}:{','.join(map(str, texts))}}}'"
        problem = Problem(key, "a value in YAML or on the command line", got, _KNOB)
        problems.setdefault(problem)
        return ""

    return refuse


def _bounded(resolve: Any) -> Any:
    count = characters = 0

    def bounded(self: Any, inter_key: str, memo: Any) -> Any:
        nonlocal count, characters
        count += 1
        if count > MAX_INTERPOLATIONS:
            raise _endless(f"more than {MAX_INTERPOLATIONS:,}")
        found = resolve(self, inter_key=inter_key, memo=memo)
        characters += len(found) if isinstance(found, str) else _length(found)
        if characters > MAX_CHARACTERS:
            raise _endless(f"more than {MAX_CHARACTERS:,} characters")
        return found

    return bounded


def _length(node: Any) -> int:
    value = getattr(node, "_value", lambda: None)()
    return len(value) if isinstance(value, str) else 0


def _endless(got: str) -> ConfigError:
    return ConfigError(Problem("configuration", "interpolations that end", got))
