"""All that is wrong with the words of a line is told at once, each with what to say instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvpipe.errors import ConfigError
from kvpipe.front.main import run
from kvpipe.request.nicknames import option_named
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.planning import plan

CONFIG = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "intermediate_size": 11008,
    }
)
SETS = " (it sets scheduler.max_model_len)"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (
            "llama3 --on h1000 --kv fp9 --context abc",
            "cache.cache_dtype device model scheduler.max_model_len",
        ),
        ("llama --kv fp9 --zzz 4 --on 3xh100+l4", "cache.cache_dtype command line device"),
        ("walk qwen3 cache=nosuch", "cache command line model"),
        ("-m llama3 cache.block_size=16,32 --kv fp9", "cache.cache_dtype model"),
        ("llama --context --kv fp9", "--context cache.cache_dtype"),
    ],
)
def test_a_wrong_word_hides_no_other_mistake(words: str, keys: str, capsys) -> None:
    assert run(words.split()) == 2
    out, err = capsys.readouterr()
    told = re.findall(r"^kvpipe: ([-a-z_.0-9 ]+): expected", err, re.MULTILINE)
    assert (out, " ".join(sorted(told)), len(err.splitlines())) == ("", keys, len(told))


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--max-num-seqs", "64"], "say scheduler.max_num_seqs=64"),
        (["--max-model-len=8192"], "say --context 8192"),
        (["-tp", "2"], "say tp=2"),
        (["--enable-prefix-caching"], "say cache.enable_prefix_caching=true"),
        (["--prefix-caching"], "did you mean vLLM's --enable-prefix-caching?"),
        (["--port", "80"], "that is vLLM's, and no setting here"),
        (["--enable-lora"], "that is vLLM's, and no setting here"),
        (["--lora", "4"], "did you mean vLLM's --enable-lora?"),
        (["--onn", "h100"], "did you mean --on?"),
        (["--user=3"], "did you mean --users?"),
        (["--bogus"], "ours are --on, --context"),
    ],
)
def test_an_unknown_flag_is_told_what_to_say_instead(words, instead, capsys) -> None:
    assert run(["llama", *words]) == 2
    err = capsys.readouterr().err
    assert instead in err and err.startswith("kvpipe: command line: expected a known flag, got '")


@pytest.mark.parametrize("words", ["--config-d .", "--conf", "-c job"])
def test_the_flags_of_hydra_are_none_of_ours_to_refuse(words: str, capsys) -> None:
    run(["llama", *words.split()])
    assert "a known flag" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "got"),
    [
        ("tp=2 parallel.tensor_parallel_size=4", "tp=2 and parallel.tensor_parallel_size=4"),
        ("--context 8k --context 16k", "'16k' and scheduler.max_model_len=8k"),
    ],
)
def test_a_setting_that_is_said_twice_is_said_alike(words: str, got: str, capsys) -> None:
    assert run(["llama", *words.split()]) == 2
    assert f"expected to be said once, got {got}" in capsys.readouterr().err.replace(SETS, "")


def test_several_cards_are_those_that_find_chooses_from(capsys) -> None:
    load = ["llama", "--users", "50", "--context", "8k"]
    assert run(["find", *load, "want.device=[h100,l40s]"]) == 0
    expected = re.sub(r"outputs\S+", "", capsys.readouterr().out)
    assert run(["find", *load, "--on", "h100,l40s"]) == 0
    assert re.sub(r"outputs\S+", "", capsys.readouterr().out) == expected


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("deepseek-r1-distill-llama-70b", "did you mean llama3_70b or "),
        ("yi-34b", "any other model is its Hub id"),
        ("walk", "the commands are compare, doctor"),
    ],
)
def test_a_name_that_nobody_has_is_told_where_to_go(said: str, hint: str, capsys) -> None:
    assert run([said, "--on", "h100"]) == 2
    assert hint in capsys.readouterr().err


def test_names_that_are_told_to_be_said_are_taken(capsys) -> None:
    assert run(["llama3"]) == 2
    names = capsys.readouterr().err.partition("say one of ")[2].split(", ")
    assert len(names) > 3
    assert all(option_named("model", name.strip(), may_begin=True) for name in names)


def test_ranks_that_split_no_heads_are_told_of_a_pipeline(capsys) -> None:
    assert run(["llama", "--on", "3xh100"]) == 2
    told = capsys.readouterr().err
    assert "parallel.pipeline_parallel_size=3 with parallel.tensor_parallel_size=1" in told
    assert run(["llama", "--on", "3xh100", "pp=3", "report=none"]) == 0


def test_the_release_that_was_not_read_is_told_on_the_first_screen(capsys) -> None:
    words = ["llama", "--on", "h100", "--context", "8k", "engine=vllm", "engine.version=0.99.0"]
    assert run(words) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "vllm 0.99.0, newer than any that was read: it is planned as 0.33.0" in told


@pytest.mark.parametrize("name", ["x\ny", "a\u202eb"])
def test_a_folder_whose_name_no_line_shows_has_no_line(name: str, tmp_path, capsys) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(CONFIG)
    assert run([str(tmp_path / name), "--on", "h100"]) == 0
    out = capsys.readouterr().out
    assert "vllm serve" not in out and "none: the folder's name has characters" in out


def test_a_file_that_fails_when_it_is_read_is_a_wrong_request(capsys) -> None:
    if not Path("/proc/self/mem").exists():
        pytest.skip("a file that cannot be read from its start")
    assert run(["doctor", "/proc/self/mem"]) == 2
    assert "got '/proc/self/mem' (Input/output error)" in capsys.readouterr().err


def test_a_folder_of_hydras_is_told_as_it_was_typed(capsys) -> None:
    assert run(["llama", "hydra.run.dir=[a]"]) == 2
    assert "hydra.run.dir: expected a folder, got '[a]'" in capsys.readouterr().err


def test_an_unknown_type_is_one_mistake_however_little_its_file_says(tmp_path, capsys) -> None:
    (tmp_path / "config.json").write_text(CONFIG.replace('"llama"', '"zork"'))
    assert run([str(tmp_path), "--on", "h100"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "got 'zork'" in err and "its keys alone do not say it: architectures (expected" in err


def test_a_plan_of_no_ranks_is_a_wrong_request() -> None:
    limits = RequestLimits(max_model_len=64, max_num_batched_tokens=64)
    with pytest.raises(ConfigError, match="layers: expected CacheLayers"):
        plan([], limits, 2**30)
    assert plan([[]], limits, 2**30).capacity is None  # a rank that keeps no cache
