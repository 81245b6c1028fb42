"""The Python API: run() for all stages, plan() for grouping alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
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


WRONG_PLANS = {
    "limits.max_model_len": {"limits": replace(LIMITS, max_model_len=4096.5)},
    "limits.max_num_batched_tokens": {"limits": replace(LIMITS, max_num_batched_tokens=0)},
    "limits.max_encoder_tokens": {"limits": replace(LIMITS, max_encoder_tokens=-1)},
    "limits.max_concurrent_batches": {"limits": replace(LIMITS, max_concurrent_batches=True)},
    "limits.num_lookahead_tokens": {"limits": replace(LIMITS, num_lookahead_tokens="2")},
    "limits.dcp": {"limits": replace(LIMITS, dcp=None)},
    "limits.pcp": {"limits": replace(LIMITS, pcp=2**40)},
    "limits.mamba_cache_mode": {"limits": replace(LIMITS, mamba_cache_mode="some")},
    "limits": {"limits": None},
    "memory": {"memory": 1e9},
    "layers": {"layers": [*LAYERS, LAYERS[0]]},
    "max_num_seqs": {"max_num_seqs": -1},
    "num_gpu_blocks_override": {"num_gpu_blocks_override": 2.5},
    "rules": {"rules": "vllm"},
    "placement": {"kv_cache_layout": 5},
}
RIGHT_PLAN = {"layers": LAYERS, "limits": LIMITS, "memory": 2**30}


@pytest.mark.parametrize("key", WRONG_PLANS)
def test_what_is_no_plan_at_all_is_refused_by_name(key):
    with pytest.raises(ConfigError) as caught:
        kvpipe.plan(**RIGHT_PLAN | WRONG_PLANS[key])
    assert [problem.key for problem in caught.value.problems] == [key]


def test_everything_wrong_with_a_plan_is_told_at_once():
    limits = RequestLimits(max_model_len=-4, max_num_batched_tokens=2048.0)
    with pytest.raises(ConfigError) as caught:
        kvpipe.plan([*LAYERS, "x", LAYERS[2]], limits, [1e9, True], max_num_seqs=0)
    assert [problem.key for problem in caught.value.problems] == [
        *("layers", "layers", "limits.max_model_len", "limits.max_num_batched_tokens"),
        *("memory", "memory", "memory", "max_num_seqs"),
    ]


@pytest.mark.parametrize(
    "layers",
    [None, "abc", ["a"], [LAYERS, LAYERS[0]], [LAYERS, ["x"]], [CacheLayer(name=3, spec=SPEC)],
     [CacheLayer(name="a", spec=None)], [CacheLayer(name="a", spec=SPEC, shares_with=1)]],
)  # fmt: skip
def test_what_is_no_list_of_layers_is_refused(layers):
    with pytest.raises(ConfigError, match="^layers: expected CacheLayers of one rank"):
        kvpipe.plan(layers, LIMITS, 2**30)


def test_layers_may_be_of_any_iterable_and_of_several_ranks():
    assert kvpipe.plan((layer for layer in LAYERS), LIMITS, 2**30).num_blocks == 512
    ranks = (iter(LAYERS), tuple(LAYERS))  # tensor parallelism: the same names on each
    assert kvpipe.plan(ranks, LIMITS, (2**30, "768MiB")).num_blocks == 384


def test_a_layer_that_a_rank_names_twice_is_refused_whoever_plans():
    from kvpipe.stages.grouping.union import stored_layers

    with pytest.raises(ConfigError, match="once, got model.layers.3.self_attn.attn twice"):
        stored_layers([LAYERS, [*LAYERS, LAYERS[3]]])


ANSWERS = [kvpipe.run, kvpipe.find, kvpipe.replay, kvpipe.compare]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("said", ["model=llama", 5, None, Path("model")])
def test_settings_are_a_list(answer, said):
    with pytest.raises(ConfigError, match="^overrides: expected a list of .*, not one string"):
        answer(said)


def test_every_word_that_is_no_setting_is_told():
    with pytest.raises(ConfigError) as caught:
        kvpipe.run(["llama", 1, None])
    assert [problem.got for problem in caught.value.problems] == ["1", "None"]
    with pytest.raises(ConfigError, match="^config_dir: expected a folder, got 5"):
        kvpipe.run(["llama"], config_dir=5)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("named", ["word", "setting"])
def test_a_function_answers_its_own_command_and_no_other(answer, named):
    load = ["model=llama", "device=h100", "want.requests=1"]
    for other in ("doctor", "run" if answer is kvpipe.replay else "replay"):
        words = [other, *load] if named == "word" else [f"command={other}", *load]
        words += {"doctor": ["command.path=sample"], "replay": ["trace=synthetic"]}.get(other, [])
        with pytest.raises(ConfigError, match=f"^command: expected {answer.__name__}, .*{other}"):
            answer(words)
    said = ["find", *load] if named == "word" else ["command=find", *load]
    assert kvpipe.find(said).to_json() == kvpipe.find(load).to_json()


def test_flags_and_paths_are_taken_as_on_the_command_line(tmp_path, monkeypatch):
    said = kvpipe.run(["llama", "--on", "h100", "--context=8k", "backend=meta"]).plan
    settings = ["model=llama", "device=h100", "scheduler.max_model_len=8192", "backend=meta"]
    assert said == kvpipe.run(iter(settings)).plan
    file = Path(__file__).parent / "cases" / "models" / "vl" / "config.json"
    folder = tmp_path / "find"  # a folder, whatever else has its name
    folder.mkdir()
    (folder / "config.json").write_text(file.read_text())
    monkeypatch.chdir(tmp_path)
    model = replace(kvpipe.read_model(file), name="find")
    for path in (str(folder), folder, Path("find"), Path("find/config.json")):
        assert kvpipe.read_model(path) == model
    ours = kvpipe.run([Path("find"), "device=h100", "backend=meta"])
    assert ours.prepared.resolved.model == model


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
    for said in ("nobody-knows-this", "", "device=h100", "find", "llama device=h100", 5):
        with pytest.raises(ConfigError):
            kvpipe.read_model(said)
