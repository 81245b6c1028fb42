"""A Kubernetes or Compose file -> the words with which each of its containers starts.

A container's process is its entry point and its arguments. Kubernetes calls them `command` and
`args`, Compose `entrypoint` and `command`; in both, one that is left out is the image's own, so the
three in a row, behind the image's entry point where none of them names a server, are the process.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from kvpipe.engines.serve import PARTITION
from kvpipe.errors import ConfigError

_PARTS = ("entrypoint", "command", "args")
_SHELLS = ("sh", "bash", "dash", "ash")
_SERVER = ["vllm", "serve"]  # the entry point of vLLM's images


def manifest_commands(text: str) -> Iterator[list[str]]:
    """Of each container, in order; nothing where the text is no such file."""
    if not any(f"{part}:" in text for part in _PARTS):
        return
    import yaml  # a log, which is most of what is pasted, needs none

    from kvpipe.request.bounded_yaml import measure

    try:
        measure("command.path", text)
        documents = list(yaml.load_all(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))
    except (yaml.YAMLError, ConfigError, ValueError):
        return
    for document in documents:
        for container in _containers(document):
            if words := _process(container):
                yield words


def _containers(node: Any) -> Iterator[Mapping[str, Any]]:
    """Mappings that say how something starts, whatever they lie in."""
    if isinstance(node, Mapping):
        if any(isinstance(node.get(part), str | list) for part in _PARTS):
            yield node
        for value in node.values():
            yield from _containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from _containers(value)


def _process(container: Mapping[str, Any]) -> list[str]:
    words = [word for part in _PARTS for word in _words(container.get(part))]
    if len(words) > 2 and words[0].rpartition("/")[2] in _SHELLS and words[1].startswith("-"):
        words = _split(words[2])  # what the shell is told to run
    if not words or not (_names_a_server(words) or "vllm" in str(container.get("image"))):
        return words
    server = [] if _names_a_server(words) else _SERVER
    return [*_partition(container), *server, *words]


def _partition(container: Mapping[str, Any]) -> list[str]:
    """The one setting that only the environment carries, as before a line for a shell."""
    env, environment = container.get("env"), container.get("environment")
    pairs = [*(environment.items() if isinstance(environment, Mapping) else ())]
    pairs += [each.partition("=")[::2] for each in _words(environment)]
    if isinstance(env, list):
        pairs += [(e.get("name"), e.get("value")) for e in env if isinstance(e, Mapping)]
    return [f"{PARTITION}={value}" for name, value in pairs if name == PARTITION][-1:]


def _names_a_server(words: list[str]) -> bool:
    return any(w.rpartition("/")[2] == "vllm" or w.startswith("vllm.entrypoints") for w in words)


def _words(part: Any) -> list[str]:
    if isinstance(part, list):
        return [word for word in part if isinstance(word, str)]
    return _split(part) if isinstance(part, str) else []


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line.replace("\\\n", " "))
    except ValueError:  # a quote that does not end
        return line.split()
