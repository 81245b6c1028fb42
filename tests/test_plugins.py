"""Third parties: a tiny package is built, installed, and used by name through its entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvpipe.errors import ConfigError
from kvpipe.plugins import REGISTRIES, SPECS
from kvpipe.registry import Registry

PACKAGE = Path(__file__).parent / "plugin_package"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed in it by pip."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(PACKAGE)], check=True, capture_output=True)
    return folder


def kvpipe(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "kvpipe", "report=json", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_an_installed_package_adds_a_stage_a_backend_a_layout_a_spec_and_their_yaml(site, tmp_path):
    chosen = ["cache.kv_cache_memory_bytes=64MiB", "grouping=kvx_reserve", "layout=kvx_flash"]
    chosen += ["backend=kvx_counting", "attention=kvx_every_other", "model=tinyllama"]
    done = kvpipe(site, tmp_path, *chosen, "grouping.reserve_percent=75")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["plan"]["ranks"][0]["size_bytes"] <= 16 * 2**20
    assert plan["backend"]["allocations"] == "1"
    assert plan["address_map"]["ranks"][0]["layers"][0]["layout"] == "kvx_flash"
    assert plan["plan"]["ranks"][0]["groups"][0]["kind"] == "kvx_every_other"
    assert plan["verify"]["passed"] and plan["verify"]["rows"] > 0


def test_a_misspelt_option_of_theirs_is_found_like_one_of_ours(site, tmp_path):
    done = kvpipe(site, tmp_path, "grouping=kvx_reserve", "grouping.reserve_percnt=75")
    assert done.returncode == 2 and json.loads(done.stdout)["status"] == "wrong_request"
    assert "did you mean 'grouping.reserve_percent'?" in done.stderr
    done = kvpipe(site, tmp_path, "grouping=kvx_reserve", "grouping.reserve_percent=100")
    assert done.returncode == 2
    assert "grouping.reserve_percent: expected less than 100, got 100" in done.stderr


def test_their_choices_are_in_the_help(site, tmp_path):
    out = kvpipe(site, tmp_path, "--help", "all").stdout
    assert "kvx_reserve" in out and "kvx_counting" in out


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(ConfigError, match=r"did you mean 'flash_attn'\? valid: "):
        REGISTRIES["layout"].get("flash_atn")


def test_every_plugin_has_its_option_file_and_every_option_file_its_plugin():
    conf = Path(__file__).parents[1] / "conf"
    for section, registry in REGISTRIES.items():
        files = {path.stem for path in (conf / section).glob("*.yaml")}
        if section != "model":  # many presets, two readers
            assert set(registry.names()) == files, section


def test_a_name_that_is_taken_twice_is_an_error(monkeypatch):
    class Point:
        name, value = "full", "elsewhere:Full"

    monkeypatch.setattr("kvpipe.registry.entry_points", lambda group: [Point()])
    registry = Registry("spec", "kvpipe.specs", "kvpipe.specs")
    with pytest.raises(ConfigError, match="one plugin a name, got 'full' twice"):
        registry.names()


def test_nothing_is_imported_before_it_is_asked_for():
    registry = Registry("spec", "kvpipe.specs", "kvpipe.specs")
    assert set(registry.names()) == set(SPECS.names())
    assert "full" in registry and "nothing" not in registry
