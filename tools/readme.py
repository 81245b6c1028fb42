"""Refreshes the outputs shown in README.md: every fenced block below `<!-- output of: COMMAND -->`.

    python tools/readme.py

Figures of this machine (memory, times) change from run to run; what a reader learns does not.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- output of: (.+?) -->\n```\n)(.*?)(```)", re.DOTALL)


def output(command: str) -> str:
    """What the command prints, stdout and stderr, in an empty folder."""
    assert command.startswith("python -m kvpipe ")
    arguments = command.split()[1:]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    return done.stdout


def main() -> None:
    text = README.read_text(encoding="utf-8")
    fresh = BLOCK.sub(lambda found: found[1] + output(found[2]) + found[4], text)
    README.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
