"""What packages register is what importlib.metadata says, wherever their metadata lies."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from kvpipe.files.entry_points import entry_points

METADATA = "Metadata-Version: 2.1\nName: theirs\nVersion: 1\n"
REGISTERS = "[kvpipe.specs]\ntheirs = theirs.spec:PLUGIN\n\n[console_scripts]\nt = theirs:main\n"


def _in_a_folder(site: Path, kind: str) -> Path:
    (site / kind).mkdir(parents=True)
    name = "METADATA" if kind.endswith("dist-info") else "PKG-INFO"
    (site / kind / name).write_text(METADATA)
    (site / kind / "entry_points.txt").write_text(REGISTERS)
    return site


def _in_an_archive(wheel: Path) -> Path:
    with ZipFile(wheel, "w") as archive:
        archive.writestr("theirs-1.dist-info/METADATA", METADATA)
        archive.writestr("theirs-1.dist-info/entry_points.txt", REGISTERS)
    return wheel


@pytest.mark.parametrize("kind", ["theirs-1.dist-info", "theirs-1.egg-info", "archive"])
def test_what_a_package_registers_is_found(kind, tmp_path, monkeypatch):
    assert "theirs" not in [point.name for point in entry_points("kvpipe.specs")]
    place = tmp_path / "theirs-1-py3-none-any.whl"
    place = _in_an_archive(place) if kind == "archive" else _in_a_folder(tmp_path / "site", kind)
    monkeypatch.syspath_prepend(str(place))
    theirs = importlib.metadata.entry_points(group="kvpipe.specs")
    assert "theirs" in theirs.names
    assert list(entry_points("kvpipe.specs")) == list(theirs)
    assert not entry_points("kvpipe.no_such_group")


def test_a_finder_of_somebodys_own_is_asked(monkeypatch):
    class Theirs(importlib.metadata.DistributionFinder):
        def find_distributions(self, context=None):  # type: ignore[no-untyped-def]
            class Found(importlib.metadata.Distribution):
                def read_text(self, filename):  # type: ignore[no-untyped-def]
                    return {"METADATA": METADATA, "entry_points.txt": REGISTERS}.get(filename)

                def locate_file(self, path):  # type: ignore[no-untyped-def]
                    return Path(path)

            yield Found()

        def find_spec(self, *_):  # type: ignore[no-untyped-def]
            return None

    monkeypatch.setattr("sys.meta_path", [*sys.meta_path, Theirs()])
    monkeypatch.setattr("sys.path", [*sys.path, "/no/such/folder"])  # asked anew
    assert [point.name for point in entry_points("kvpipe.specs")].count("theirs") == 1
