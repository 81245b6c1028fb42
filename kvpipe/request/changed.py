"""Composed values with some of them replaced: the request that a search or an advice tries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpipe.request.confdir import shipped_option


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """changes: a setting ("cache.block_size") -> its value, or a section ("device") -> the name of
    a shipped option, or all its settings. In their order; `raw` stays as it is."""
    values = dict(raw)  # no section of it is ever written into
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            values[section] = {**values[section], name: value}
        else:
            values[section] = shipped_option(section, value) if isinstance(value, str) else value
    return values


def estimated(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Changes with which the memory of any card is worked out: none where the request's own way
    does that (by a formula, with the options that were set for it), or where the size of the cache
    is set. What was measured on one card, or read from its log, says nothing of another."""
    is_set = raw["cache"]["kv_cache_memory_bytes"] is not None
    is_formula = raw["profiling"]["name"] in ("estimate", "utilization")
    return {} if is_set or is_formula else {"profiling": "estimate"}
