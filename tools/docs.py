"""Writes the pages of docs/ that are made from the program itself: a page a command from its own
help, and the Python API from its docstrings.

    python tools/docs.py

Outputs of commands inside pages are tools/readme.py's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvpipe
from kvpipe.front.api import CommandResult, RunResult
from kvpipe.front.help import help_lines
from kvpipe.plugins import COMMANDS

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 96
_RESULTS = (RunResult, CommandResult)
_MADE = "<!-- Made by tools/docs.py: do not edit. -->"


def pages() -> dict[Path, str]:
    """Path under docs/ -> text."""
    return {
        **{Path("commands") / f"{name}.md": command_page(name) for name in COMMANDS.names()},
        Path("api.md"): api_page(),
    }


def command_page(name: str) -> str:
    """What the command is for, an example, and its help as the program prints it."""
    command = COMMANDS.get(name)
    help_text = "\n".join(line.text for line in help_lines([name], WIDTH)).rstrip()
    files = ", ".join(f"`{file}`" for file in command.files)
    where = (
        "in its folder" if command.leaves else "in the folder of a sweep's job, and nowhere else"
    )
    return (
        f"{_MADE}\n\n# kvpipe {name}\n\n{command.summary}.\n\n    {command.example}\n\n"
        f"Leaves {where}: {files}, and `result.json`.\n\n"
        f"## Its help\n\n```\n{help_text}\n```\n"
    )


def api_page() -> str:
    """Every public name with its signature and docstring."""
    parts = [f"{_MADE}\n\n# In Python\n\n```\n{inspect.getdoc(kvpipe)}\n```\n"]
    parts += [_entry("kvpipe", name, getattr(kvpipe, name)) for name in kvpipe.__all__]
    parts.append("## What an answer offers\n")
    parts += list(_methods())
    return "\n".join(parts)


def _entry(where: str, name: str, thing: Any) -> str:
    head = f"class {name}" if isinstance(thing, type) else "\n".join(_signature(name, thing))
    return f"## {where}.{name}\n\n```python\n{head}\n```\n\n```\n{inspect.getdoc(thing)}\n```\n"


def _signature(name: str, thing: Any) -> Iterator[str]:
    """A parameter a line; a default that is an object of ours is left to the docstring."""
    signature, told = inspect.signature(thing), (bool, int, str, tuple, type(None))
    yield f"{name}("
    is_star = False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not is_star:
            is_star = True
            yield "    *,"
        plain = isinstance(each.default, told) and len(repr(each.default)) < 40
        default = (
            "" if each.default is each.empty else f" = {each.default!r}" if plain else " = ..."
        )
        yield f"    {each.name}: {each.annotation}{default},"
    yield f") -> {signature.return_annotation}"


def _methods() -> Iterator[str]:
    """Of any result; what a run's has beside them is its class's docstring."""
    for name in ("to_json", "text", "svg", "save"):
        method = getattr(CommandResult, name)
        yield f"### {name}\n\n```\n{inspect.getdoc(method)}\n```\n"
    for kind in _RESULTS:
        yield f"### {kind.__name__}\n\n```\n{inspect.getdoc(kind)}\n```\n"


def main() -> None:
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
