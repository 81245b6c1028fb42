"""Name -> plugin: lazy, typed, with a suggestion for a misspelt name.

A built-in plugin is a module of one folder that says `PLUGIN = <the thing>`; adding a variant is
adding a file, no table to keep in step. Third parties register through an entry point of the
group that the registry names. Nothing is imported before `get`.
"""

from __future__ import annotations

from functools import cache, cached_property
from importlib import import_module
from os.path import isfile  # which takes a name that no file can have for none
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.files.entry_points import EntryPoint, entry_points

T = TypeVar("T")


@cache
def _says_plugin(path: Path) -> bool:
    """Read as text: nothing is imported before it is chosen."""
    return isfile(path) and "\nPLUGIN" in path.read_text(encoding="utf-8")


@cache
def _built_in(folder: Path, package: str, name: str) -> str | None:
    """The module of that name; the others are not looked at."""
    if not name.isidentifier() or name.endswith("_"):
        return None
    found = (stem for stem in (name, f"{name}_") if _says_plugin(folder / f"{stem}.py"))
    return next((f"{package}.{stem}" for stem in found), None)


@cache
def _plugin_of(module: str) -> Any:
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
    def _folder(self) -> Path:
        return Path(__file__).parent.joinpath(*self.package.split(".")[1:])

    @cached_property
    def _theirs(self) -> dict[str, EntryPoint]:
        """Of third parties; ConfigError where a name is taken."""
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            if point.name in found or self._module(point.name):
                raise ConfigError(
                    Problem(self.kind, "one plugin a name", f"'{point.name}' twice ({point.value})")
                )
            found[point.name] = point
        return found

    def _module(self, name: str) -> str | None:
        return _built_in(self._folder, self.package, name)

    def names(self) -> list[str]:
        ours = {p.stem.rstrip("_") for p in self._folder.glob("*.py") if _says_plugin(p)}
        return sorted(ours | self._theirs.keys())

    def __contains__(self, name: str) -> bool:
        return name in self._theirs or self._module(name) is not None

    def get(self, name: str) -> T:
        """The plugin, imported on first use; ConfigError listing the valid names otherwise."""
        plugin: T
        if name in self._theirs:
            plugin = load_entry_point(self.kind, self._theirs[name])
        elif module := self._module(name):
            plugin = _plugin_of(module)
        else:
            hint = did_you_mean(name, self.names())
            problem = Problem(self.kind, "a registered name", f"'{name}'", hint, of_name=True)
            raise ConfigError(problem)
        return plugin
