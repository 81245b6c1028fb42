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


def whole_sentences(text: str, longest: int) -> str:
    """At most so many characters of it: whole sentences, or, where the first is longer, words."""
    if len(text) <= longest:
        return text
    end = max(text.rfind(mark, 0, longest) for mark in (". ", "! ", "; "))
    if end > 0:
        return text[: end + 1]
    return f"{text[:longest].rpartition(' ')[0] or text[:longest]} ..."
