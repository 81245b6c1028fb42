"""What a request may say to Hydra: where to write, how to launch. Nothing that names code.

Hydra instantiates the classes that its own settings name (callbacks, launchers, log handlers), so a
`_target_` in a user's YAML, or on the command line, would run whatever it names. Such a setting is
refused before anything is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpipe.errors import Problem

# Settings of Hydra that the command line may set, and the groups it may choose from.
ALLOWED = ("hydra.run.dir", "hydra.sweep.dir", "hydra.searchpath", "hydra.verbose")
ALLOWED_UNDER = ("hydra.launcher.", "hydra.sweeper.")
ALLOWED_GROUPS = ("hydra/launcher", "hydra/sweeper")

# Keys whose values Hydra or logging would import, and the names that ship with us or with Hydra.
_NAMES_CODE = ("_target_", "()", "class", "factory")
_SHIPPED = (
    "kvpipe.front.sweep.SweepTable",
    "logging.StreamHandler",
    "logging.FileHandler",
    "colorlog.ColoredFormatter",
)
_SHIPPED_UNDER = ("hydra._internal.core_plugins.", "hydra_plugins.")


def refused_override(key: str, override: str) -> Problem | None:
    """A command-line setting of Hydra that is not ours to let through."""
    if not key.startswith(("hydra.", "hydra/")):
        return None
    last = key.rpartition(".")[2]
    allowed = key in ALLOWED or key in ALLOWED_GROUPS or key.startswith(ALLOWED_UNDER)
    if allowed and last not in _NAMES_CODE:
        return None
    legal = ", ".join((*ALLOWED, *ALLOWED_GROUPS, *(f"{name}*" for name in ALLOWED_UNDER)))
    return Problem(key, f"one of {legal}", f"'{override}'")


def named_code(hydra: Any) -> list[Problem]:
    """Every class or function that the composed `hydra` section names and that is not shipped.

    hydra: plain containers, interpolations unresolved.
    """
    return [
        Problem(
            key,
            "no name of code (YAML names plugins, it never names code to import)",
            repr(value),
            "register a plugin through an entry point",
        )
        for key, value in _walk(hydra, "hydra")
        if not (isinstance(value, str) and (value in _SHIPPED or value.startswith(_SHIPPED_UNDER)))
    ]


def _walk(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in _NAMES_CODE:
                yield f"{path}.{key}", value
            yield from _walk(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _walk(value, f"{path}.{index}")
