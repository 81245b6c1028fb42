"""Third parties: a tiny package is built, installed, and used by name through its entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from spec_mutants import mutant
from spec_walk import first_problem, problems

from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.plugins import REGISTRIES, SECTIONS, SPECS
from kvpipe.registry import Registry
from kvpipe.report.folded import unfolded
from kvpipe.request.plain_yaml import load_yaml
from kvpipe.specs.bounds import WindowConflict
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.stages.grouping.base import Grouping

PACKAGE = Path(__file__).parent / "plugin_package"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed in it by pip."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(PACKAGE)], check=True, capture_output=True)
    return folder


def kvpipe(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    here = os.pathsep.join((str(site), str(Path(__file__).parents[1])))
    environment = {**os.environ, "PYTHONPATH": here}
    chosen = any(word.startswith("report=") for word in arguments)
    command = [sys.executable, "-m", "kvpipe", *([] if chosen else ["report=json"]), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_an_installed_package_adds_a_stage_a_backend_a_layout_a_spec_and_their_yaml(site, tmp_path):
    chosen = ["cache.kv_cache_memory_bytes=64MiB", "grouping=kvx_reserve", "layout=kvx_flash"]
    chosen += ["backend=kvx_counting", "attention=kvx_every_other", "model=tinyllama"]
    done = kvpipe(site, tmp_path, *chosen, "grouping.reserve_percent=75")
    assert done.returncode == 0, done.stderr
    plan = unfolded(json.loads(done.stdout))
    assert plan["plan"]["ranks"][0]["size_bytes"] <= 16 * 2**20
    assert plan["backend"]["allocations"] == "1"
    assert plan["address_map"]["ranks"][0]["layers"][0]["layout"] == "kvx_flash"
    assert plan["plan"]["ranks"][0]["groups"][0]["kind"] == "kvx_every_other"
    assert plan["verify"]["passed"] and plan["verify"]["rows"] > 0


def test_an_installed_package_adds_an_engine_a_memory_source_a_report_and_a_what_if(site, tmp_path):
    chosen = ["engine=kvx_engine", "profiling=kvx_share", "attention=kvx_dilated"]
    chosen += ["model=tinyllama", "device=h100_80gb", "report=kvx_line"]
    done = kvpipe(site, tmp_path, *chosen, "profiling.percent=1")
    assert done.returncode == 0, done.stderr
    blocks = 85093277696 // 100 // (22 * 16 * 4 * 64 * 2 * 2)  # 1 % of the device
    assert done.stdout == f"{blocks} blocks, fits\n"


def test_an_installed_package_adds_a_trace(site, tmp_path):
    chosen = ["replay", "trace=kvx_pair", "model=tinyllama", "device=h100_80gb", "report=json"]
    done = kvpipe(site, tmp_path, *chosen, "trace.prompt_tokens=33")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["finished"] == 2


def test_an_installed_package_adds_a_model_family_and_is_held_to_the_bytes(site, tmp_path):
    sizes = {"depth": 6, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": 100, "intermediate_size": 96, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "kvx_alternating", "torch_dtype": "bfloat16", **sizes})
    )
    done = kvpipe(site, tmp_path, "model=hf", f"model.path={tmp_path}", "device=h100_80gb")
    assert done.returncode == 0, done.stderr
    plan = unfolded(json.loads(done.stdout))
    (group,) = plan["plan"]["ranks"][0]["groups"]
    assert len(group["layers"]) == 3
    # q, k, v, o of 64 x (64 + 32 + 32 + 64); MLPs of 3 x 64 x 96; a norm a layer and one at the end
    by_hand = 3 * 64 * 192 + 3 * 3 * 64 * 96 + 7 * 64 + 2 * 100 * 64
    (weights,) = [m for m in plan["memory"]["ranks"][0]["charged"] if m["name"] == "weights"]
    assert weights["num_bytes"] == 2 * by_hand


@pytest.mark.full
def test_a_command_of_theirs_can_be_swept(site, tmp_path):
    words = ["kvx_layers", "model=tinyllama", "device=h100_80gb"]
    swept = kvpipe(site, tmp_path, "-m", *words, "command.first=2,3", "report=text")
    assert swept.returncode == 0 and "2 jobs, 2 fit" in swept.stdout, swept.stderr


def test_an_installed_package_adds_a_command_with_json_files_and_help(site, tmp_path):
    words = ["kvx_layers", "model=tinyllama", "device=h100_80gb"]
    done = kvpipe(site, tmp_path, *words, "command.first=2", "report=json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["pages"]) == 2
    (left,) = tmp_path.glob("outputs/*/*/layers.json")
    assert json.loads(left.read_text()) == document
    wrong = kvpipe(site, tmp_path, *words, "command.first=0", "report=text")
    assert wrong.returncode == 2 and "command.first: expected at least 1" in wrong.stderr
    said = kvpipe(site, tmp_path, "kvx_layers", "--help", "report=text").stdout
    assert "command.first" in said and "how many layers are listed" in said
    assert "kvx_layers" in kvpipe(site, tmp_path, "--help", "report=text").stdout


@pytest.fixture
def installed(site, monkeypatch) -> Registry:
    """The specs of this process and of the package, as an interpreter that has both sees them."""
    assert SPECS.names()  # of this process alone, found before the package is
    monkeypatch.syspath_prepend(str(site))
    yield Registry("attention.spec", "kvpipe.specs", "kvpipe.specs")
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvx"]:
        del sys.modules[name]


def test_a_spec_of_theirs_is_walked_like_one_of_ours(installed):
    theirs = sorted(set(installed.names()) - set(SPECS.names()))
    assert theirs == ["kvx_dilated", "kvx_every_other"]
    for name in theirs:
        examples = installed.get(name).examples()
        assert len(examples) >= 2
        for spec in examples:
            assert list(problems(spec)) == []
            wrong = "resident frees three quarters of the live window"
            assert any(f"{name} in blocks of" in first_problem(mutant(e, wrong)) for e in examples)


def test_a_bound_of_theirs_is_remembered_by_the_full_layers_that_it_joins(installed):
    spec = installed.get("kvx_dilated").examples()[0]
    full = spec.promoted()
    assert full.keeps_every_token and full.bound == spec.bound
    assert full.own_fields()["dilation"] == spec.dilation
    plain = FullAttentionSpec.what_if(full, {})
    assert plain.merge([full]) == full.merge([plain]) == full
    with pytest.raises(WindowConflict, match="two values of dilation in one group: 2 and 3"):
        full.merge([replace(spec, dilation=3).promoted()])


@pytest.mark.full
def test_a_misspelt_option_of_theirs_is_found_like_one_of_ours(site, tmp_path):
    done = kvpipe(site, tmp_path, "grouping=kvx_reserve", "grouping.reserve_percnt=75")
    assert done.returncode == 2 and json.loads(done.stdout)["status"] == "wrong_request"
    assert "did you mean 'grouping.reserve_percent'?" in done.stderr
    done = kvpipe(site, tmp_path, "grouping=kvx_reserve", "grouping.reserve_percent=100")
    assert done.returncode == 2
    assert "grouping.reserve_percent: expected less than 100, got 100" in done.stderr


@pytest.mark.full
def test_their_choices_are_in_the_help(site, tmp_path):
    out = kvpipe(site, tmp_path, "--help", "all").stdout
    assert "kvx_reserve" in out and "kvx_counting" in out


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(ConfigError, match=r"did you mean 'flash_attn'\? valid: "):
        REGISTRIES["layout"].get("flash_atn")


def test_every_plugin_has_its_option_file_and_every_option_file_its_plugin():
    conf = Path(__file__).parents[1] / "conf"
    for section, registry in REGISTRIES.items():
        files = (conf / section).glob("*.yaml")
        named = {
            load_yaml(path.read_text(encoding="utf-8")).get(SECTIONS[section]) for path in files
        }
        assert set(registry.names()) == named - {None}, section


def test_a_plugin_that_makes_another_kind_of_thing_is_told_by_name():
    asked = ["model=tinyllama", "cache.kv_cache_memory_bytes=64MiB"]
    grouping = prepared_request(asked).prepared.config.plugins["grouping"]
    assert isinstance(grouping.make(Grouping), Grouping)
    with pytest.raises(ConfigError, match=r"grouping\.name: .*'hybrid', which makes a str"):
        replace(grouping, plugin=lambda options: "a string").make(Grouping)


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
