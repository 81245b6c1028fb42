"""All that is wrong with the words of a line is told at once, each with what to say instead."""

from __future__ import annotations

import re

import pytest

from kvpipe.front.main import run
from kvpipe.request.nicknames import option_named

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
