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


def some(names: Iterable[str]) -> str:
    """`a, b, ... (12 layers)` of many names."""
    listed = list(names)
    more = f", ... ({len(listed)} layers)" if len(listed) > 2 else ""
    return ", ".join(listed[:2]) + more
