"""The wheel: conf/ ships inside the package, nothing else lands in site-packages, and it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True, capture_output=True)
    (built,) = folder.glob("kvpipe-*.whl")
    return built


def test_the_wheel_has_one_package_and_every_option_file(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"kvpipe"}
    shipped = {name.removeprefix("kvpipe/") for name in names if name.startswith("kvpipe/conf/")}
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")}
    assert shipped == ours
    sources = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "kvpipe").rglob("*")
        if p.suffix in (".cu", ".h", ".html", ".css", ".js")
    }
    assert sources <= set(names), "kernels are compiled where they are used; a page has its parts"
    assert {Path(name).suffix for name in sources} == {".cu", ".h", ".html", ".css", ".js"}


def test_the_wheel_runs_in_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "kvpipe", "backend=meta", "report=json", "model=tinyllama"]
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "fits"
    where = "import kvpipe.request.confdir as c; print(c.CONF_DIR)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=empty, env=environment, capture_output=True, text=True
    )
    assert Path(found.stdout.strip()) == site / "kvpipe" / "conf"
