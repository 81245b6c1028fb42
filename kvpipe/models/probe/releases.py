"""Where transformers releases differ: the range that is supported, and a renamed keyword."""

from __future__ import annotations

import inspect
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvpipe.errors import ConfigError, Problem

SUPPORTED = ">=5.23,<5.25"
# What the cache is called in a forward method: from 5.24, up to 5.23, and in old Mamba models.
CACHE_KEYWORDS = ("cache", "past_key_values", "cache_params")


def transformers_problems(key: str = "binding") -> list[Problem]:
    """What is missing to run a transformers model here. key: the setting that asks for it."""
    try:
        found = version("transformers")
    except PackageNotFoundError:
        found = ""
    major_minor = tuple(int(part) for part in found.split(".")[:2]) if found else ()
    if (5, 23) <= major_minor < (5, 25):
        return []
    got = f"transformers {found}" if found else "no transformers"
    return [
        Problem(key, f"transformers{SUPPORTED}", got, "pip install 'kvpipe[hf]'"),
    ]


def require_transformers(key: str = "binding") -> None:
    if problems := transformers_problems(key):
        raise ConfigError(problems)


def cache_keyword(module: Any) -> str:
    """The name under which a model's forward, and so its `generate`, takes its cache."""
    names = inspect.signature(module.forward).parameters
    return next((name for name in CACHE_KEYWORDS if name in names), CACHE_KEYWORDS[0])
