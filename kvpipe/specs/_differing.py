"""In which field two specs differ."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def differing(a: Any, b: Any, ignore: frozenset[str]) -> str:
    """The first field of a that b has another value of, in words; "" when none."""
    for field in fields(a):
        ours, theirs = getattr(a, field.name), getattr(b, field.name, None)
        if field.name not in ignore and ours != theirs:
            return f"{field.name} {theirs} next to {ours}"
    return ""
