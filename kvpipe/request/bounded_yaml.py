"""YAML from somebody else is measured before it is loaded: aliases, depth and size have bounds.

A loader copies what an alias stands for, so ten lines can ask for more memory than there is.
Reading the events alone expands nothing.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.regular import open_regular

MAX_BYTES = 256 * 1024
MAX_NODES = 50_000
MAX_DEPTH = 40

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_yaml(path: Path) -> None:
    """ConfigError unless the file is YAML within the bounds; nothing of it is built."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise _refused(str(path), f"at most {MAX_BYTES:,} bytes", "more")
        text = content.decode("utf-8")
        _check_root(path, text)
        measure(str(path), text)
    except yaml.YAMLError as error:
        raise _refused(str(path), "YAML", " ".join(str(error).split())) from error
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise _refused(str(path), "a file of YAML in UTF-8", got) from error


def measure(key: str, text: str) -> None:
    """ConfigError of that key beyond the bounds, YAMLError where it is none. The events are walked,
    and what the aliases stand for counted."""
    nodes_of: dict[str, int] = {}  # by anchor, once it is closed
    open_nodes: list[tuple[str | None, int]] = []  # (anchor, nodes before it)
    nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in nodes_of:
                raise _refused(key, "aliases of what is whole", f"'*{event.anchor}'")
            nodes += nodes_of[event.anchor]
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            nodes_of |= {anchor: nodes - before} if anchor else {}
        elif isinstance(event, yaml.NodeEvent):
            nodes += 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((event.anchor, nodes - 1))
            elif event.anchor:
                nodes_of[event.anchor] = 1
        if len(open_nodes) > MAX_DEPTH:
            raise _refused(key, f"at most {MAX_DEPTH} levels", "more")
        if nodes > MAX_NODES:
            raise _refused(key, f"at most {MAX_NODES:,} values, aliases written out", "more")


def _check_root(path: Path, text: str) -> None:
    """A text alone would be taken for a key, and repeated: it may be anybody's file."""
    nodes = (e for e in yaml.parse(text, Loader=_Loader) if isinstance(e, yaml.NodeEvent))
    root = next(nodes, None)
    if root is not None and not isinstance(root, yaml.MappingStartEvent):
        raise _refused(str(path), "a config of settings", "another kind of YAML, or no YAML")


def _refused(key: str, expected: str, got: str) -> ConfigError:
    return ConfigError(Problem(key, expected, got))
