"""The Python API: run() for all stages, plan() for grouping alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvpipe
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
LAYERS = [CacheLayer(name=f"model.layers.{i}.self_attn.attn", spec=SPEC) for i in range(32)]
LIMITS = RequestLimits(max_model_len=4096, max_num_batched_tokens=2048)


def test_run_takes_what_the_command_line_takes_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["model=tinyllama", "cache=sliding", "cache.kv_cache_memory_bytes=64MiB"]
    result = kvpipe.run([*asked, "cache.sliding_window=256", "backend=torch"])
    assert result.plan.num_blocks == 64 * 2**20 // (22 * 16 * 4 * 64 * 2 * 2)
    assert result.bound[0].verify.passed and result.bound[0].verify.rows > 0
    assert result.bound[0].buffers.allocated_bytes == result.plan.ranks[0].config.size_bytes
    assert not list(tmp_path.iterdir())


def test_run_raises_every_problem_at_once():
    with pytest.raises(ConfigError) as caught:
        kvpipe.run(["cache.block_size=abc", "cache.nothing=1"])
    assert len(caught.value.problems) == 2


def test_plan_needs_no_hydra_and_no_torch():
    plan = kvpipe.plan(LAYERS, LIMITS, 2**30)
    assert plan.num_blocks == 512 and plan.capacity.usable_blocks == 511
    with pytest.raises(DoesNotFit):
        kvpipe.plan(LAYERS, LIMITS, 2**20)
    heavy = "{'torch', 'hydra', 'numpy'}"
    code = f"import sys, kvpipe; kvpipe.plan; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_sizes_are_written_as_people_write_them():
    for size in ("1GiB", "1G", "1024MiB", ["1GiB"]):
        assert kvpipe.plan(LAYERS, LIMITS, size).num_blocks == 512
    with pytest.raises(ConfigError, match="memory: expected bytes, or a size .* got 'lots'"):
        kvpipe.plan(LAYERS, LIMITS, "lots")


def test_one_string_is_not_a_list_of_settings():
    with pytest.raises(TypeError, match="not one string"):
        kvpipe.run("model=llama")


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        kvpipe.plam  # noqa: B018


def test_the_public_names_are_these_and_dir_shows_nothing_else():
    names = ["ConfigError", "DoesNotFit", "compare", "find", "plan", "read_model", "replay", "run"]
    assert dir(kvpipe) == names == sorted(kvpipe.__all__)
    for name in names:
        assert getattr(kvpipe, name).__doc__, name
    assert (Path(kvpipe.__file__).parent / "py.typed").is_file()


def test_import_kvpipe_imports_nothing_heavy():
    heavy = "{'torch', 'hydra', 'numpy', 'pydantic', 'omegaconf', 'yaml'}"
    code = f"import sys, kvpipe; dir(kvpipe); sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_result_tells_itself_as_the_command_line_does(tmp_path, capsys, monkeypatch):
    from kvpipe.front.main import run as command_line

    monkeypatch.chdir(tmp_path)
    asked = ["model=llama", "device=h100", "backend=meta", "report=json"]
    result = kvpipe.run(asked)
    assert command_line(asked) == 0
    printed = json.loads(capsys.readouterr().out)
    told = json.loads(json.dumps(result.to_json()))
    assert {**told, "seconds": 0} == {**printed, "seconds": 0}
    result.save(tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "plan.json").read_text()) == told
    assert (tmp_path / "kept" / "memory_map.svg").read_text() == result.svg()
    assert result.svg().startswith("<svg") and "IT FITS" in result.text()
    assert "<svg" in result._repr_html_() and "IT FITS" in result._repr_html_()


def test_find_and_replay_answer_in_python():
    load = ["want.requests=1", "want.length=8192"]
    found = kvpipe.find(["llama", "device=h100", *load])
    assert found.fits and found.to_json()["want"] == {"requests": 1, "length": 8192}
    assert not kvpipe.find(["llama", "device=t4", "want.requests=1000", "want.length=8192"]).fits
    replayed = kvpipe.replay(["llama", "device=h100", "trace=azure_code_sample"])
    assert replayed.to_json()["requests"] == 500 and "<svg" in replayed.svg()


def test_engines_are_compared_in_python():
    compared = kvpipe.compare(
        ["llama", "device=h100", "scheduler.max_model_len=8192", "engines=[vllm,sglang]"]
    )
    assert [engine["name"] for engine in compared.to_json()["engines"]] == ["vllm", "sglang"]
    assert compared.fits and compared.svg().startswith("<svg")
    assert "<svg" in compared._repr_html_() and "sglang" in compared._repr_html_()


def test_a_model_is_read_by_any_of_its_names():
    model = kvpipe.read_model("llama-3.1-8b")
    assert (model.name, model.num_layers) == ("meta-llama/Llama-3.1-8B", 32)
    with pytest.raises(ConfigError):
        kvpipe.read_model("nobody-knows-this")
