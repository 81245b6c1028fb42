"""Refreshes the outputs shown in README.md and docs/: every fenced block below
`<!-- output of: COMMAND -->`.

    python tools/readme.py [PAGE ...]

Figures of this machine (memory, times) change from run to run; what a reader learns does not.
`shown` lists every command that a page shows, for the tests that run them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- output of: (.+?) -->\n```\n)(.*?)(```)", re.DOTALL)
_COMMAND = re.compile(r"(?:python -m )?kvpipe (?!\w+: )(.+)")  # not the title of a help
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`]+)`")


def pages() -> list[Path]:
    """Everything that a reader reads."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(text: str) -> list[str]:
    """The arguments of every command of a page, as they are typed: those with their outputs, in
    blocks of code, and in the text."""
    outputs = [found[2] for found in BLOCK.finditer(text)]
    rest = BLOCK.sub("", text)
    blocks = [line.strip() for block in _FENCED.findall(rest) for line in _lines(block)]
    plain = _FENCED.sub("", rest)
    blocks += [line.strip() for line in plain.splitlines() if line.startswith("    ")]
    inline = [" ".join(code.split()) for code in _INLINE.findall(plain)]
    typed = (part for line in (*outputs, *blocks, *inline) for part in line.split(" && "))
    found = [_COMMAND.fullmatch(part) for part in typed]
    return list(dict.fromkeys(match[1] for match in found if match))


def _lines(block: str) -> Iterator[str]:
    return iter(re.sub(r"\s*\\\n\s*", " ", block).splitlines())


def block(command: str) -> str:
    """The command as it is typed, and what it prints."""
    return f"$ {command}\n{output(command)}"


def output(command: str) -> str:
    """What the command prints, stdout and stderr, in an empty folder."""
    match = _COMMAND.fullmatch(command)
    assert match, command
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "kvpipe", *shlex.split(match[1])],
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    return done.stdout


def main() -> None:
    for page in [Path(name) for name in sys.argv[1:]] or pages():
        text = page.read_text(encoding="utf-8")
        fresh = BLOCK.sub(lambda found: found[1] + block(found[2]) + found[4], text)
        page.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
