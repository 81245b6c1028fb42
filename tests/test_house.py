"""The house keeps its rules: what is private, what may import what, how many files stand on top."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELVES = ("kvpipe", "tests", "tools", "benchmarks", "examples")
MOST_ON_TOP = 8


def files() -> Iterator[Path]:
    for shelf in SHELVES:
        yield from sorted((ROOT / shelf).rglob("*.py"))


def package(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parts[:-1])


@cache
def imported(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of everything of kvpipe that a file imports, names in it included."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvpipe"):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.startswith("kvpipe"))


def owner_of_private(name: str) -> str | None:
    """The package to which a private part of a dotted name belongs."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[:i])
    return None


def is_module(name: str) -> bool:
    return (ROOT / (name.replace(".", "/") + ".py")).is_file()


def test_an_underscore_means_private_to_its_package() -> None:
    wrong = []
    for path in files():
        for line, name in imported(path):
            owner = owner_of_private(name)
            if owner is None:
                continue
            home = owner.rpartition(".")[0] if is_module(owner) else owner
            inside = f"{package(path)}.".startswith(f"{home}.")
            if not inside or (is_module(owner) and home != package(path)):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def graph(unit_of) -> dict[str, set[str]]:  # type: ignore[no-untyped-def]
    edges: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "kvpipe").rglob("*.py")):
        here = unit_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for _, name in imported(path):
            module = name if is_module(name) else name.rpartition(".")[0]
            if (there := unit_of(module)) != here:
                edges[here].add(there)
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Every circle that a walk along the arrows closes."""
    done: set[str] = set()
    found: list[list[str]] = []

    def walk(at: str, trail: list[str]) -> None:
        if at in trail:
            found.append([*trail[trail.index(at) :], at])
        elif at not in done:
            for to in sorted(edges.get(at, ())):
                walk(to, [*trail, at])
            done.add(at)

    for start in sorted(edges):
        walk(start, [])
    return found


def room(module: str) -> str:
    """kvpipe.blocks.manager -> blocks; a file on top is a room of its own."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def test_no_two_packages_import_each_other() -> None:
    assert circles(graph(room)) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(graph(lambda module: module)) == []


def test_the_guards_find_what_they_are_for() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c", "a"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []
    assert owner_of_private("kvpipe.blocks._pages.Page") == "kvpipe.blocks"


def test_the_top_of_the_package_tells_the_architecture() -> None:
    on_top = sorted(path.name for path in (ROOT / "kvpipe").glob("*.py"))
    assert len(on_top) <= MOST_ON_TOP, on_top
