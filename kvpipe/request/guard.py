"""What a request may say to Hydra: on the command line a short list, in a file nothing.

Hydra acts on its own section of a composed config: it imports the classes named there, opens log
files, sets environment variables, changes folders. So that section is never a file's to write.
Three rules, applied to everything Hydra composes, wherever it came from (see guarded_loader):

1. Settings of Hydra on the command line are those of `ALLOWED`, `ALLOWED_UNDER`, `ALLOWED_GROUPS`.
2. A file outside conf/ and Hydra itself that says anything under `hydra` is refused.
3. What acts is `SETTLED`, put over the composed section: what rules 1 and 2 miss does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override

from kvpipe.errors import Problem

# Settings of Hydra that the command line may set, and the groups it may choose from.
ALLOWED = ("hydra.run.dir", "hydra.sweep.dir", "hydra.searchpath", "hydra.verbose")
ALLOWED_UNDER = ("hydra.launcher.",)
ALLOWED_GROUPS = ("hydra/launcher",)

# Keys whose values Hydra or logging would import; plugins of Hydra that are installed.
_NAMES_CODE = ("_target_", "()", "class", "factory")
_INSTALLED = ("hydra._internal.core_plugins.", "hydra_plugins.")

# stdout carries the report and nothing else: Hydra's own lines go to stderr, warnings and above.
_STDERR_LOGGING = {
    "version": 1,
    "formatters": {"line": {"format": "kvpipe: %(message)s"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "stream": "ext://sys.stderr",
        }
    },
    "root": {"level": "WARNING", "handlers": ["console"]},
    "disable_existing_loggers": False,
}
# What Hydra is told, over whatever was composed. No output_subdir: kvpipe writes .hydra itself.
SETTLED: Mapping[str, Any] = {
    "hydra_logging": _STDERR_LOGGING,
    "job_logging": _STDERR_LOGGING,
    "callbacks": {},
    "output_subdir": None,
    "sweep.subdir": "${hydra.job.num}",
    "job.name": "kvpipe",
    "job.chdir": False,
    "job.env_set": {},
    "job.env_copy": [],
}
# Hydra's groups that are not a request's to choose from, as conf/ and Hydra choose in them.
_SETTLED_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "hydra/output": ("default",),
    "hydra/help": ("kvpipe", "default"),
    "hydra/hydra_help": ("default",),
    "hydra/hydra_logging": ("default",),
    "hydra/job_logging": ("default",),
    "hydra/callbacks": (None,),
    "hydra/env": ("default",),
    "hydra/launcher": ("basic",),
    "hydra/sweeper": ("basic",),
}
IN_FILES = "no setting of Hydra's in a file (the command line may say them)"


def refused_override(item: Override) -> Problem | None:
    """A command-line setting of Hydra's that is not ours to let through."""
    key, said = item.key_or_group, item.input_line or ""
    if _is_hydras(item.package or ""):
        return Problem(said, "a place outside Hydra's own settings", f"'{item.package}'")
    if not _is_hydras(key):
        return None
    allowed = key in ALLOWED or key in ALLOWED_GROUPS or key.startswith(ALLOWED_UNDER)
    if not allowed or item.package or key.rpartition(".")[2] in _NAMES_CODE:
        legal = ", ".join((*ALLOWED, *ALLOWED_GROUPS, *(f"{name}*" for name in ALLOWED_UNDER)))
        return Problem(key, f"one of {legal}", f"'{said}'")
    return None


def refused_folders(key: str, paths: Any) -> list[Problem]:
    """Search path entries that are not folders: `pkg://name` would import the package."""
    entries = paths if isinstance(paths, list) else [paths]
    return [
        Problem(key, "folders (a package's name would be imported)", f"'{entry}'")
        for entry in entries
        if not isinstance(entry, str)
        or "${" in entry
        or ("://" in entry and not entry.startswith("file://"))
    ]


def chosen_in_a_file(choices: Mapping[str, Any], said: set[str]) -> list[Problem]:
    """Hydra's groups in which something other than the settled option came to be chosen.

    said: the groups in which the command line chose.
    """
    return [
        Problem(group, IN_FILES, f"'{group}: {choice}'")
        for group, choice in choices.items()
        if _is_hydras(group)
        and group not in said
        and choice not in _SETTLED_CHOICES.get(group, (None,))
    ]


def named_code(hydra: Any) -> list[Problem]:
    """Every class or function that the composed launcher names and that is no installed plugin of
    Hydra's. hydra: plain containers, interpolations unresolved."""
    return [
        Problem(
            key,
            "no name of code (YAML names plugins, it never names code to import)",
            repr(value),
            "register a plugin through an entry point",
        )
        for key, value in _walk(hydra.get("launcher"), "hydra.launcher")
        if not (isinstance(value, str) and value.startswith(_INSTALLED))
    ]


def leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that is no container, and of empty containers."""
    pairs: Any = node.items() if isinstance(node, dict) else ()
    pairs = enumerate(node) if isinstance(node, list) else pairs
    if not isinstance(node, dict | list) or not node:
        yield path, node
    for key, value in pairs:
        yield from leaves(value, f"{path}.{key}")


def _is_hydras(key: str) -> bool:
    """Whether a dotted key, a group or a package lies in Hydra's section, however it is written."""
    return next((part for part in re.split(r"[./\[\]@:\s]", key) if part), "") == "hydra"


def _walk(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in _NAMES_CODE:
                yield f"{path}.{key}", value
            yield from _walk(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _walk(value, f"{path}.{index}")
