"""Text that came from a file, made safe to show: the one place where a report leaves kvpipe.

A model's or device's name may hold escape sequences (a terminal obeys them), direction marks (text
reads otherwise than it is) or line breaks (a line that kvpipe seems to say).
"""

from __future__ import annotations


def clean(line: str) -> str:
    """One line of a report, of the same length, a `?` for each character that is not shown as it
    is. Applied to every line on stdout and stderr and to every text of a picture."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else "?" for c in line)


def clean_lines(text: str) -> str:
    """Several lines, each clean; only the line feed ends a line."""
    return "\n".join(clean(line) for line in text.split("\n"))
