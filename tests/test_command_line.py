"""The command line: what is printed where, exit codes, and that a wrong request writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvpipe.errors import ConfigError
from kvpipe.front.help_all import all_sections, groups_told
from kvpipe.front.main import run
from kvpipe.front.words import words_to_overrides
from kvpipe.request.described import choices


def _nobody_listens(*_: object, **__: object) -> None:
    raise OSError("nobody listens")


SMALL = ["cache.kv_cache_memory_bytes=64MiB", "backend=torch"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvpipe.models.hub.socket.create_connection", _nobody_listens)
    return tmp_path


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def test_the_headline_command_runs_all_five_stages(capsys, tmp_path):
    assert run(["model=llama", "cache=sliding", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert "mismatches" in out and err == ""
    (folder,) = tmp_path.glob("outputs/*/*")
    names = {path.name for path in folder.iterdir()}
    assert names == {"plan.json", "memory_map.svg", "result.json", ".hydra"}
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["verify"]["passed"] and plan["verify"]["mismatches"] == 0
    assert list(plan["seconds"]) == ["profiling", "grouping", "allocation", "binding"]


def test_three_mistakes_of_three_kinds_are_all_printed_one_line_each(capsys, tmp_path):
    mistakes = ["cache.blocksize=32", "cache.block_size=abc", "attention=sliding"]
    assert run(mistakes) == 2
    out, err = capsys.readouterr()
    assert out == ""
    unknown, wrong_type, across = sorted(lines(err))
    assert "cache.block_size: expected a whole number or 'auto', got 'abc'" in unknown
    assert "cache.blocksize: expected a known key" in wrong_type
    assert "did you mean 'cache.block_size'?" in wrong_type
    assert "cache.sliding_window: expected a window in tokens" in across
    assert "set cache.sliding_window=4096" in across
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cache=slidng"], "did you mean 'sliding'?"),
        (["cache=full,sliding"], "add -m"),
        (["model=nobody"], "model: expected a choice of this group"),
        (["cache.gpu_memory_utilization=1.5"], "at most 1"),
        (["cache.gpu_memory_utilization=0"], "more than 0"),
        (["cache.kv_cache_memory_bytes=30GoB"], "got '30GoB'"),
        (["cache.block_size=0"], "at least 1"),
        (["cache.block_size=true"], "got True"),
        (["+cache.blocksize=32"], "did you mean 'block_size'?"),
        (["backend=cupy"], "backend"),
        (["attention=full", "cache.sliding_window=64"], "leave one of the two out"),
        (["scheduler.max_model_len=200000"], "at most the model's context of 131,072 tokens"),
        (["parallel.tensor_parallel_size=3"], "parallel.tensor_parallel_size"),
        (["parallel.pipeline_parallel_size=64"], "at most 32"),
        (["parallel.decode_context_parallel_size=2"], "a divisor of tensor_parallel_size"),
        (["cache.cache_dtype=fp8_ds_mla"], "latent rows"),
        (["device=h100_80gb", "backend=torch"], "is not in this machine"),
        (["profiling=fixed"], "cache.kv_cache_memory_bytes"),
        (["device=h100_80gb", "engine=vllm_0_17", "cache.block_size=64"], "1, 2, 4, 8, 16, 32"),
        (["device=h100_80gb", "cache.block_size=24"], "a multiple of 16"),
        (["example=mamba", "cache.mamba_page_size_padded=8192"], "194,560"),
        (["nonsense"], "command line: expected a command, a model ("),
        (["command=walk"], "command: expected a choice of this group, got 'walk'; valid: "),
        (["hydra.run.dir=/proc/nobody/here"], "hydra.run.dir: expected a folder that can be made"),
        (["hydra.run.dir="], "hydra.run.dir: expected a folder"),
        (["hydra.run.dir=${nope}"], "hydra.run.dir: expected a folder"),
        (["hydra.mode=MULTIRUN"], "hydra.mode: expected one of hydra.run.dir"),
        (["hydra.callbacks.x._target_=os.abort"], "expected one of hydra.run.dir"),
        (["hydra/launcher=nope"], "valid: basic"),
        (["cache.block_size=${oc.env:HOME}"], "a value in YAML or on the command line"),
        (["cache.block_size=${cache.block_size}"], "cache.block_size"),
        (["+cache=sliding"], "+cache=sliding: expected a choice that composes"),
        (["cache.block_size=[1,"], "cache.block_size: expected a value in Hydra's grammar"),
        (["=1"], "command line: expected key=value or group=choice"),
        (["trace=5"], "trace: expected a choice of this group"),
        (["model.reader=null"], "model.reader: expected the name of a plugin, got None"),
        (["parallel.tensor_parallel_size=2147483647"], "at most 1024"),
        (["--bogus"], "command line: expected a known flag, got '--bogus'; ours are --on"),
        (["--config-name", "nope"], "Cannot find primary config 'nope'"),
        (["--config-path", "nope"], "--config-path: expected a folder"),
        (["--config-dir", "nope"], "--config-dir: expected a folder"),
        (["./nope.json"], "model.path: expected "),
        (["/etc"], "config.json"),
        (["nobody/nothing-of-that-name"], "model.repo: expected "),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(arguments, said, capsys, tmp_path):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err, err
    assert all(line.startswith("kvpipe: ") for line in lines(err))
    assert "Traceback" not in err
    assert not (tmp_path / "outputs").exists()


def test_a_request_that_does_not_fit_says_by_how_much_and_what_would(capsys):
    asked = ["scheduler.max_model_len=131072", "cache.kv_cache_memory_bytes=1GiB", "backend=meta"]
    assert run(asked) == 1
    err = capsys.readouterr().err
    assert "scheduler.max_model_len" in err and "8,176" in err, err
    # The advice really helps, and one token more does not.
    asked[0] = "scheduler.max_model_len=8176"
    assert run(asked) == 0
    asked[0] = "scheduler.max_model_len=8177"
    assert run(asked) == 1


def test_words_become_a_command_and_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert words_to_overrides(["replay", "a=1"]) == ["command=replay", "a=1"]
    assert words_to_overrides(["org/name"]) == ["model=hf", "model.repo='org/name'"]
    assert words_to_overrides(["config.json"]) == ["model=hf", "model.path='config.json'"]
    with pytest.raises(ConfigError, match="a command"):
        words_to_overrides(["a=1", "run"])


def test_a_saved_config_runs_again_identically(capsys, tmp_path):
    assert run(["model=gemma3_27b", "backend=meta", "cache.kv_cache_memory_bytes=4GiB"]) == 0
    (folder,) = tmp_path.glob("outputs/*/*")
    first = json.loads((folder / "plan.json").read_text())
    assert run(["--config-path", str(folder / ".hydra")]) == 0
    (again,) = (f for f in tmp_path.glob("outputs/*/*") if f != folder)
    second = json.loads((again / "plan.json").read_text())
    for document in (first, second):
        del document["seconds"]
    assert first == second


def test_two_runs_of_the_same_second_do_not_share_a_folder(tmp_path):
    for _ in range(3):
        assert run(["backend=meta", "hydra.run.dir=outputs/same"]) == 0
    assert sorted(p.name for p in tmp_path.glob("outputs/*")) == ["same", "same-1", "same-2"]


def test_planning_imports_no_heavy_package(tmp_path):
    code = (
        "import sys; from kvpipe.front.main import run; "
        "assert run(['backend=meta', 'report=json']) == 0; "
        "heavy = {'torch', 'numpy', 'pandas', 'cupy', 'transformers', 'matplotlib'}; "
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


@pytest.mark.parametrize(
    "command", ["find", "compare", "replay", "doctor", pytest.param("page", marks=pytest.mark.full)]
)
def test_what_owns_no_memory_imports_no_heavy_package_on_a_cpu_either(command, tmp_path):
    short = ["trace=synthetic", "trace.max_requests=3"] if command == "replay" else []
    asked = ["sample"] if command == "doctor" else ["device=cpu", "report=none", *short]
    code = (
        f"import sys; from kvpipe.front.main import run; run([{command!r}, *{asked!r}]); "
        "sys.exit(sorted({'torch', 'cupy', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_first_screen_loads_no_module_that_only_other_requests_need(tmp_path):
    """Each takes its part of the start: advice, layers of several kinds, model files, sweeps."""
    code = (
        "import atexit, sys; from kvpipe.front.main import main; "
        "atexit.register(lambda: print('loaded', *sys.modules, file=sys.stderr)); main()"
    )
    command = [sys.executable, "-c", code, "llama", "--on", "h100", "--context", "8k"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    loaded = set(done.stderr.partition("loaded")[2].split())
    ours = {
        "answers": ["remedies", "regroupings", "replan", "trials", "log_memory", "served"],
        "models": ["config_file", "families", "gguf", "hub", "probe"],
        "request": ["changed", "compose"],
        "stages.grouping": ["_arguments", "_equal_groups", "_equal_slots", "_packing",
                            "_promotion", "_unifying", "slots.kernels"],
        "stages.profiling": ["fixed"],
    }  # fmt: skip
    kept_out = {f"kvpipe.{room}.{name}" for room, names in ours.items() for name in names}
    kept_out |= {"hydra", "omegaconf", "rich", "argparse", "csv", "logging"}
    assert "kvpipe.pipeline" in loaded and kept_out & loaded == set()


def test_the_report_ends_quietly_when_its_reader_does():
    command = f"{sys.executable} -m kvpipe backend=meta | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ)
    assert done.stderr == "" and len(lines(done.stdout)) == 1


def test_help_lists_every_group_with_its_choices_and_a_sentence(capsys):
    assert run(["--help", "all"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(sentence and f"{group}: {sentence}" in out for group, (_, sentence) in told())
    for group in (Path(__file__).parents[1] / "conf").iterdir():
        if group.is_dir() and group.name != "hydra":
            choices = ", ".join(sorted(path.stem for path in group.glob("*.yaml")))
            assert f"{group.name}=: {choices}" in out


# Written by a script (model), and what a choice is called or is made of.
UNTOLD = {"name", "defaults", "published", "source", "config", "mix", "label"}


def told():
    return groups_told().items()


def test_every_setting_of_a_run_has_a_sentence_in_the_list_of_all():
    listed = {row[0]: row[2] for section in all_sections() for row in section.rows}
    for group, (default, _) in told():
        (choice,) = (each for each in choices(group) if each.name == default)
        keys = {setting.key for setting in choice.settings} - UNTOLD
        assert all(listed.get(f"{group}.{key}") for key in keys), (group, keys, listed)


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvpipe 0.")


CODE = """
# @package _global_
hydra:
  job_logging:
    formatters:
      f: {(): evil.f}
  callbacks:
    x: {_target_: evil.f}
"""


def test_no_yaml_names_code_to_run(capsys, tmp_path):
    folder = tmp_path / "mine" / "cache"
    folder.mkdir(parents=True)
    (folder / "evil.yaml").write_text(CODE)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef f(*a, **k): ...\n")
    for multirun in ([], ["-m"]):
        arguments = [*multirun, "--config-dir", str(tmp_path / "mine"), "cache=evil"]
        assert run([*arguments, "backend=meta"]) == 2
        err = capsys.readouterr().err
        assert err.count("no setting of Hydra's in a file") == 2, err
    assert not (tmp_path / "ran").exists() and not (tmp_path / "outputs").exists()


def test_the_folder_of_a_run_is_enough_to_run_it_again(capsys, tmp_path):
    assert run(["backend=meta"]) == 0
    (folder,) = tmp_path.glob("outputs/*/*")
    assert run(["-cp", str(folder), "report.name=none"]) == 0
    assert run(["-cp", str(folder), "report=json"]) == 2
    assert "set report.name=json" in capsys.readouterr().err


@pytest.mark.parametrize(("redirect", "code"), [(">&-", 0), ("2>&-", 0), (">/dev/full", 3)])
def test_closed_and_full_streams_end_without_a_traceback(redirect, code, tmp_path):
    command = f"{sys.executable} -m kvpipe backend=meta {redirect}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code and "Traceback" not in done.stdout + done.stderr


def test_an_error_never_lands_on_stdout(tmp_path):
    command = f"{sys.executable} -m kvpipe cache=nope 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_json_is_one_document_whatever_the_outcome(capsys):
    assert run(["report=json", "cache.block_size=abc"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "wrong_request"
    assert document["problems"][0]["key"] == "cache.block_size"
    assert run(["report=json", "backend=meta", "scheduler.max_model_len=131072"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "does_not_fit" and document["longest_len"] == 8176


def test_a_server_that_starts_and_can_run_no_request_does_not_fit(capsys):
    """vLLM 0.17 admits by its first group alone: Jamba's states, which are small."""
    asked = ["model=jamba", "engine=vllm_0_17", "scheduler.max_model_len=262144", "backend=meta"]
    asked += ["cache.kv_cache_memory_bytes=60MiB", "report=json"]
    assert run(asked) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["status"] == "does_not_fit" and document["capacity"]["requests_at_peak"] == 0
    assert "engine=vllm_0_17 starts, but not one request of 262,144 tokens can run" in err
    longest = document["capacity"]["longest_request"]
    assert run([*asked, f"scheduler.max_model_len={longest}"]) == 0
