"""Writes the table of docs/models.md: how each architecture of vLLM's registry is read, and what
its plan was held against.

    python tools/architectures.py FILE      # FILE: lines of "architecture<TAB>model_type"

An architecture counts by its model_type: read by family where kvpipe has a row for it, or for the
part of it that generates; else by standard keys where its class is not transformers' (its file
must then say everything); else refused by name.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import engine_classes  # noqa: E402
import type_records  # noqa: E402

from kvpipe.models.families import families  # noqa: E402
from kvpipe.models.families.classes import class_facts, generating_type  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
START, END = "<!-- architectures -->", "<!-- end -->"
FAMILY, KEYS, REFUSED, UNKNOWN = "family", "standard keys", "refused", "no file seen"
# What a plan was held against: vLLM's class of that name; the cache that transformers' class of
# that name filled; such a cache of the type that the file nests; nothing, the name is all.
CLASS, CACHE, PART, NAME = "vLLM's class", "its own cache", "its part's cache", "its name alone"


def way(model_type: str) -> str:
    """How a published file of that type is read."""
    if not model_type:
        return UNKNOWN
    if generating_type(model_type) in families() or model_type in families():
        return FAMILY
    return REFUSED if model_type in class_facts() else KEYS


def evidence(name: str, model_type: str) -> str:
    """The strongest of what the plan of a file of that type was held against."""
    if name in engine_classes.records():
        return CLASS
    types = type_records.records()
    part = generating_type(model_type)
    held = {t for t in (model_type, part) if "self" in types.get(t, {})}
    held |= {t for t in (model_type, part) for r in types.values() if r.get("text_type") == t}
    if any(types.get(t, {}).get("class") == name for t in (model_type, part)):
        return CACHE
    return PART if held else NAME


def table(lines: list[str]) -> list[str]:
    rows = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    found = [(name, kind, way(kind)) for name, kind in rows]
    sums = Counter(how for _, _, how in found)
    said = ", ".join(f"{sums[how]} {how}" for how in (FAMILY, KEYS, REFUSED, UNKNOWN))
    held = {name: evidence(name, kind) for name, kind, how in found if how in (FAMILY, KEYS)}
    sums = Counter(held.values())
    against = ", ".join(f"{sums[what]} {what}" for what in (CLASS, CACHE, PART, NAME))
    return [
        f"{len(found)} architectures: {said}.",
        f"Plans of those that are read were held against: {against}.",
        "",
        "| architecture | model_type | read by | held against |",
        "|---|---|---|---|",
        *(
            f"| {name} | {kind or '?'} | {how} | {held.get(name, '')} |"
            for name, kind, how in found
        ),
    ]


def main() -> None:
    lines = Path(sys.argv[1]).read_text("utf-8").splitlines()
    text = PAGE.read_text("utf-8")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{START}\n{chr(10).join(table(lines))}\n{END}{after}", "utf-8")
    print(*table(lines)[:2], sep="\n")


if __name__ == "__main__":
    main()
