"""Name -> plugin: lazy, typed, with a suggestion for a misspelt name.

A built-in plugin is a module of one folder that says `PLUGIN = <the thing>`; adding a variant is
adding a file, no table to keep in step. Third parties register through an entry point of the
group that the registry names. Nothing is imported before `get`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvpipe.errors import ConfigError, Problem, did_you_mean

T = TypeVar("T")


def _says_plugin(path: Path) -> bool:
    """Read as text: nothing is imported before it is chosen."""
    return "\nPLUGIN" in path.read_text(encoding="utf-8")


def _built_in(module: str) -> Any:
    return import_module(module).PLUGIN


def load_entry_point(kind: str, point: EntryPoint) -> Any:
    """What a third party's package brings; ConfigError under `kind` where it does not import."""
    try:
        return point.load()
    except Exception as error:  # any failure is theirs to read
        problem = Problem(kind, f"plugin '{point.name}' to import", f"{error!r}")
        raise ConfigError(problem) from error


class Registry(Generic[T]):
    """Plugins of one kind.

    kind: what an error calls it and the config key that names it (`grouping`, `backend`).
    package: the package whose modules are the built-ins: those that say `PLUGIN = ` at the start of
    a line (the others are shelves that they share); a trailing underscore, as in `torch_`, is
    dropped.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind, self.package, self.group = kind, package, group

    @cached_property
    def _sources(self) -> dict[str, Callable[[], T]]:
        found: dict[str, Callable[[], T]] = {}
        folder = Path(__file__).parent.joinpath(*self.package.split(".")[1:])
        for path in sorted(folder.glob("*.py")):
            if _says_plugin(path):
                found[path.stem.rstrip("_")] = partial(_built_in, f"{self.package}.{path.stem}")
        for point in entry_points(group=self.group):
            if point.name in found:
                raise ConfigError(
                    Problem(self.kind, "one plugin a name", f"'{point.name}' twice ({point.value})")
                )
            found[point.name] = partial(load_entry_point, self.kind, point)
        return found

    def names(self) -> list[str]:
        return sorted(self._sources)

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def get(self, name: str) -> T:
        """The plugin, imported on first use; ConfigError listing the valid names otherwise."""
        if name not in self._sources:
            hint = did_you_mean(name, self.names())
            problem = Problem(self.kind, "a registered name", f"'{name}'", hint, of_name=True)
            raise ConfigError(problem)
        return self._sources[name]()
