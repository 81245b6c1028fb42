"""What a new user types in the first hour, and is told."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import kvpipe
from kvpipe.front.main import run
from kvpipe.request.confdir import CONF_DIR


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(*words: str) -> list[str]:
    return [*words, "backend=meta", "report=json"]


@pytest.mark.parametrize(
    ("gib", "status", "code"),
    [(64, "does_not_fit", 1), (62, "may_not_fit", 0), (50, "fits", 0)],
)
def test_a_cache_set_by_hand_stands_beside_all_that_a_card_must_hold(gib, status, code, capsys):
    """14.96 GiB of weights, 2.0 GiB of activations, context and graphs, of 79.25 GiB."""
    size = f"cache.kv_cache_memory_bytes={gib}GiB"
    assert run(planned("llama", "--on", "h100", size)) == code
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == status
    charged = {item["name"]: item["num_bytes"] for item in told["memory"]["ranks"][0]["charged"]}
    assert {"weights", "activations", "context", "graphs"} <= set(charged)
    over = told["bytes"]["ranks"][0]["overcommitted_bytes"]
    assert (over > 0) == (sum(charged.values()) + gib * 2**30 > int(79.25 * 2**30))


@pytest.mark.parametrize("engine", ["sglang", "vllm", "kvpipe"])
def test_engines_side_by_side_refuse_what_a_run_refuses(engine, capsys):
    size = "cache.kv_cache_memory_bytes=64GiB"
    words = ["compare", "llama", "--on", "h100", size, f"engines=[{engine}]"]
    assert run(planned(*words)) == 1
    (found,) = json.loads(capsys.readouterr().out)["engines"]
    assert found["plan"] is None and "beside the weights" in found["refused"][0]


def test_what_only_a_command_reads_is_refused_beside_everything_else(capsys):
    wrong = ["want.requests=0", "want.prices={foo:2}", "want.device=[h1000,nope]"]
    assert run(["find", "llama", "--on", "h100", "cache.block_size=abc", *wrong]) == 2
    keys = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    named = [
        "want.device",
        "want.device",
        "want.prices",
        "want.requests",
        "device",
        "cache.block_size",
    ]
    assert keys == named
    assert run(["compare", "llama", "engines=[foo,bar]", "cache.block_size=abc"]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    replayed = ["replay", "llama", "trace=azure_code_sample", "trace.efficiency=7"]
    assert run([*replayed, "cache.block_size=abc"]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_an_empty_config_is_asked_what_it_is(folder, capsys):
    (folder / "config.json").write_text("{}")
    assert run(["./config.json", "--on", "h100"]) == 2
    told = capsys.readouterr().err
    assert "beside a model's weights?" in told and "probe" not in told and "hrm_text" not in told


def test_help_finds_the_settings_that_mention_a_word(capsys):
    assert run(["--help", "draft"]) == 0
    out = capsys.readouterr().out
    assert "model.draft" in out and "scheduler.num_speculative_tokens" in out
    for word, found in (
        ("mem_fraction", "engine.mem_fraction_static"),
        ("h100", "device=h100_pcie"),
    ):
        assert run(["--help", word]) == 0
        assert found in capsys.readouterr().out
    assert run(["--help", "zzzz"]) == 2
    assert "--help: expected a command" in capsys.readouterr().err
    assert run(["llama", "--help"]) == 0
    assert "Commands" in capsys.readouterr().out


def test_a_file_is_no_folder_for_a_run(folder, capsys):
    (folder / "afile").touch()
    assert run(["llama", "--on", "h100", "hydra.run.dir=afile"]) == 2
    assert "got 'afile' (not a folder)" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["afile"]


def test_one_of_a_thing_is_not_several(capsys):
    run(["-m", "cache.block_size=16", "backend=meta"])
    assert "1 job, 1 fit" in capsys.readouterr().out
    run(["llama", "--on", "t4", "--context", "1", "--users", "2", "scheduler.max_num_seqs=1"])
    told = capsys.readouterr()
    assert "1 tokens" not in told.out + told.err and "1 requests" not in told.out + told.err


def ways_of(line: str) -> list[str]:
    return [way.partition(" (")[0] for way in line.strip().split("; ") if way]


@pytest.mark.parametrize(
    ("words", "surely", "maybe"),
    [
        (["llama", "device=l4", "scheduler.max_model_len=131072"], 3, 2),
        (["llama", "device=l4", "scheduler.max_model_len=8192", "want.requests=4"], 3, 4),
        (["gemma3_27b", "device=h100", "engine=vllm", "scheduler.max_model_len=131072"], 3, 4),
    ],
)
def test_what_is_told_to_fit_is_said_to_fit_once_it_is_followed(words, surely, maybe, capsys):
    """By an estimate a length may run and may not: such a way is told as one that may fit."""
    assert run([*words, "report=json", "backend=meta"]) == 1
    line = capsys.readouterr().err.partition("planned, and fits: ")[2]
    sure, _, unsure = line.partition(". Planned, and may fit, since the memory is an estimate: ")
    assert (len(ways_of(sure)), len(ways_of(unsure))) == (surely, maybe)
    for ways, status in ((ways_of(sure), "fits"), (ways_of(unsure), "may_not_fit")):
        for way in ways:
            keys = {change.partition("=")[0] for change in way.split()}
            kept = [word for word in words if word.partition("=")[0] not in keys]
            assert run(planned(*kept, *way.split())) == 0
            assert json.loads(capsys.readouterr().out)["status"] == status, way


@pytest.mark.parametrize("asked", ["64GiB", "63GiB"])
def test_what_is_told_to_fit_beside_a_cache_by_hand_fits_at_worst_too(
    asked: str, capsys, tmp_path, monkeypatch
) -> None:
    """weights=fp8 leaves 64 GiB of an H100 by the best of the estimate alone."""
    monkeypatch.chdir(tmp_path)
    words = ["model=llama", "device=h100_80gb", f"cache.kv_cache_memory_bytes={asked}"]
    assert run([*words, "scheduler.max_model_len=131072"]) == 1
    line = capsys.readouterr().err.partition("planned, and fits: ")[2]
    ways = ways_of(line)
    assert len(ways) > 1
    for number, way in enumerate(ways):
        kept = [word for word in words if word.partition("=")[0] != way.partition("=")[0]]
        assert run([*kept, "scheduler.max_model_len=131072", way, f"hydra.run.dir=o{number}"]) == 0
        result = json.loads((tmp_path / f"o{number}" / "result.json").read_text())
        assert result["status"] == "fits", way


def test_a_cache_by_hand_that_the_device_has_not_is_refused_unless_it_is_meant(capsys):
    """As README says it."""
    asked = planned("llama", "--on", "h100", "cache.kv_cache_memory_bytes=300GiB")
    assert run(asked) == 1
    assert "more than all of device h100_80gb" in capsys.readouterr().err
    assert run([*asked, "cache.may_exceed_device=true"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["plan"]["num_blocks"] == 300 * 2**30 // 2**21


@pytest.mark.parametrize(("users", "card"), [(1, "rtx_4090"), (40, "h100")])
def test_a_block_that_is_too_large_is_made_smaller(users, card, capsys):
    """The largest halving that surely serves is named first of all; twice as much may not."""
    words = ["llama", "--on", card, "--context", "2k", f"--users={users}"]
    assert run(planned(*words, "cache.block_size=65536")) == 1
    (first, *_) = json.loads(capsys.readouterr().out)["advice"]
    assert set(first) == {"cache.block_size"}
    size = first["cache.block_size"]
    for block, fits in ((size, True), (2 * size, False)):
        run(planned(*words, f"cache.block_size={block}"))
        assert (json.loads(capsys.readouterr().out)["status"] == "fits") == fits


# --- option files of one's own ---
@pytest.fixture
def own(folder: Path) -> Path:
    """A --config-dir with a model, a cache, and files that say too little."""
    preset = CONF_DIR / "model" / "llama.yaml"
    for name in ("mine", "modèle", "my-model v2"):
        write(folder / "own" / "model" / f"{name}.yaml", preset.read_text(encoding="utf-8"))
    write(folder / "own" / "cache" / "mine.yaml", "defaults: [full]\nblock_size: 32\n")
    write(folder / "own" / "cache" / "part.yaml", "block_size: 32\n")
    for group in ("cache", "scheduler", "device", "parallel", "report", "engine", "model"):
        write(folder / "own" / group / "empty.yaml", "")
    return folder / "own"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("group", ["cache", "device", "engine"])
def test_an_option_file_that_says_nothing_is_one_mistake(group, own, capsys):
    asked = {"model": "llama", "device": "h100", group: "empty"}
    words = [f"{key}={value}" for key, value in asked.items()]
    assert run(["--config-dir", str(own), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvpipe: {group}")
    assert "got none for" in line or "got an empty section" in line


def test_what_an_option_file_leaves_out_is_one_mistake_beside_the_others(own, capsys):
    words = ["--config-dir", str(own), "model=llama", "device=h100", "cache=part"]
    assert run([*words, "scheduler.max_num_seqs=x"]) == 2
    left_out, other = capsys.readouterr().err.splitlines()
    assert "cache: expected all of its settings, got none for gpu_memory_utilization" in left_out
    assert "begin a file of your own with `defaults: [<option>]`" in left_out
    assert "scheduler.max_num_seqs: expected" in other
    words[-1] = "cache=mine"
    assert run([*words, "backend=meta", "report=json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["cache"]["block_size"] == 32


@pytest.mark.parametrize("word", ["mine", "my-model v2"])
def test_a_preset_of_ones_own_is_a_word(word, own, capsys):
    flags = ["--on", "h100", "--context", "8k"]
    assert run(planned(word, *flags, "--config-dir", str(own))) == 0
    found = json.loads(capsys.readouterr().out)["plan"]
    assert run(planned("llama", *flags)) == 0
    assert found == json.loads(capsys.readouterr().out)["plan"]
    assert run(planned(word, *flags)) == 2  # of no folder: no such model
    assert run(planned(word, "model=tinyllama", "--config-dir", str(own))) == 2
    assert "expected one model, got two" in capsys.readouterr().err
    assert kvpipe.run([word, *flags, "backend=meta"], config_dir=own).plan.num_blocks


def test_a_choice_that_hydra_cannot_read_is_no_choice_or_is_quoted(own, capsys):
    words = ["--config-dir", str(own), "device=h100", "backend=meta"]
    assert run([*words, "model=llamà"]) == 2
    err = capsys.readouterr().err
    assert "model: expected a choice of this group, got 'llamà'; did you mean 'llama'" in err
    assert run([*words, "model=modèle"]) == 2
    quoted = """model='"modèle"'"""
    assert f"quote it: {quoted}" in capsys.readouterr().err
    assert run([*words, *shlex.split(quoted)]) == 0
    assert run([*words, "model=llama", "model.name=日本"]) == 2
    assert """quote it: model.name='"日本"'""" in capsys.readouterr().err
