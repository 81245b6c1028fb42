"""What a new user types in the first hour, and is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvpipe.front.main import run


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
    named = ["want.device", "want.device", "want.prices", "want.requests", "cache.block_size"]
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
        (["llama", "device=l4", "scheduler.max_model_len=131072"], 2, 0),
        (["llama", "device=l4", "scheduler.max_model_len=8192", "want.requests=4"], 3, 1),
        (["gemma3_27b", "device=h100", "engine=vllm", "scheduler.max_model_len=131072"], 2, 2),
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
            kept = [word for word in words if word.partition("=")[0] != way.partition("=")[0]]
            assert run(planned(*kept, way)) == 0
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
