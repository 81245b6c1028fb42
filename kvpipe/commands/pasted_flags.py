"""Flags of a pasted line: those that its release refuses, and those that kvpipe does not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvpipe.answers.pasted_request import PastedRequest
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.base import Engine
from kvpipe.engines.serve_flags import refused_flag


def refused_flags(pasted: PastedRequest) -> Mapping[str, str]:
    """Flag -> why the server stops at it. Nothing where a log shows that it took them."""
    version = _version(pasted)
    if pasted.command is None or pasted.log is not None or not version:
        return {}
    found = {flag: refused_flag(flag, version) for flag in pasted.command.flags}
    return {flag: why for flag, why in found.items() if why}


def of_flags(pasted: PastedRequest) -> Iterator[Trouble]:
    found = refused_flags(pasted)
    if not found:
        return
    text = "; ".join(found.values())
    if not any(key.partition(".")[0] == "engine" for key in pasted.prepared.said):
        text += f". vLLM {_version(pasted)} is supposed: say engine=vllm engine.version=... if not"
    yield Trouble(text=text, stops=True, change={})


def unread(pasted: PastedRequest) -> str:
    """Flags that stand for nothing here; those that the release refuses are a trouble."""
    flags = pasted.command.unknown if pasted.command is not None else ()
    refused = refused_flags(pasted)
    named = [flag for flag in flags if flag not in refused]
    return f"; not read, and left as they are: {', '.join(named)}" if named else ""


def _version(pasted: PastedRequest) -> str:
    return pasted.prepared.config.plugins["engine"].make(Engine).rules.version
