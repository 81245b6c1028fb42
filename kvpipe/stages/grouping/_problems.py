"""Errors of grouping: a reason from a spec or a rule -> one line with the key that helps."""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.errors import ConfigError, Problem

HYBRID = "cache.disable_hybrid_kv_cache_manager"


def refuse(
    key: str, expected: str, got: str, knob: str = "", *, reference: str, stage: str = "groups"
) -> ConfigError:
    """A wrong request. reference, stage: what the reference engine raises, and where."""
    return ConfigError(Problem(key, expected, got, knob), reference, stage)


def about(error: ConfigError, names: Iterable[str], where: str = "") -> ConfigError:
    """The same error, naming the layers that it is about (and where they lie)."""
    layers = tuple(names)
    told = f" ({some(layers)}{where})"
    problems = [Problem(p.key, p.expected, p.got + told, p.knob) for p in error.problems]
    named = ConfigError(problems, error.reference_type, error.stage)
    named.layers = layers
    return named


def some(names: Iterable[str]) -> str:
    """`a, b, ... (12 layers)` of many names."""
    listed = list(names)
    more = f", ... ({len(listed)} layers)" if len(listed) > 2 else ""
    return ", ".join(listed[:2]) + more
