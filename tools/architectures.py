"""Writes the table of docs/models.md: how each architecture of vLLM's registry is read.

    python tools/architectures.py FILE      # FILE: lines of "architecture<TAB>model_type"

An architecture counts by its model_type: read by family where kvpipe has a row for it, or for the
part of it that generates; else by standard keys where its class is not transformers' (its file
must then say everything); else refused by name.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from kvpipe.models.families import families
from kvpipe.models.families.classes import class_facts, generating_type

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
START, END = "<!-- architectures -->", "<!-- end -->"
FAMILY, KEYS, REFUSED, UNKNOWN = "family", "standard keys", "refused", "no file seen"


def way(model_type: str) -> str:
    """How a published file of that type is read."""
    if not model_type:
        return UNKNOWN
    if generating_type(model_type) in families() or model_type in families():
        return FAMILY
    return REFUSED if model_type in class_facts() else KEYS


def table(lines: list[str]) -> list[str]:
    rows = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    found = [(name, kind, way(kind)) for name, kind in rows]
    sums = Counter(how for _, _, how in found)
    said = ", ".join(f"{sums[how]} {how}" for how in (FAMILY, KEYS, REFUSED, UNKNOWN))
    return [
        f"{len(found)} architectures: {said}.",
        "",
        "| architecture | model_type | read by |",
        "|---|---|---|",
        *(f"| {name} | {kind or '?'} | {how} |" for name, kind, how in found),
    ]


def main() -> None:
    lines = Path(sys.argv[1]).read_text("utf-8").splitlines()
    text = PAGE.read_text("utf-8")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{START}\n{chr(10).join(table(lines))}\n{END}{after}", "utf-8")
    print(table(lines)[0])


if __name__ == "__main__":
    main()
