"""What people say on a command line, and the settings that it means."""

from __future__ import annotations

import pytest

from kvpipe.errors import ConfigError
from kvpipe.front.flags import flags_to_words
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.front.short_keys import FLAGS
from kvpipe.front.words import words_to_overrides
from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.nicknames import hub_name_is_shipped, near_names, option_named
from kvpipe.text.quantities import parse_length, parse_size


def meant(line: str) -> list[str]:
    return words_to_overrides(flags_to_words(line.split()))


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (
            "llama-3.1-70b --on 2xh100 --context 32k --kv fp8 --users 16",
            "model=llama3_70b device=h100_80gb parallel.tensor_parallel_size=2 "
            "scheduler.max_model_len=32k cache.cache_dtype=fp8 want.requests=16",
        ),
        ("llama", "model=llama"),
        ("Llama-3.1-8B-Instruct", "model=llama"),
        ("meta-llama/Llama-3.1-8B", "model=llama"),
        ("device=4090", "device=rtx_4090"),
        ("--on a100-40", "device=a100_40gb"),
        ("--on A100-40GB", "device=a100_40gb"),
        ("--on=H100", "device=h100_80gb"),
        ("--on h100,h200", "device=h100_80gb,h200"),
        ("--on 2xh100,2xh200", "device=h100_80gb,h200 parallel.tensor_parallel_size=2"),
        (
            "--on 4xh200 pp=2",
            "device=h200 parallel.tensor_parallel_size=2 parallel.pipeline_parallel_size=2",
        ),
        (
            "--on 4xh200 tp=2 dp=2",
            "device=h200 parallel.tensor_parallel_size=2 parallel.data_parallel_size=2",
        ),
        (
            "--on 4xh200 dp=2",
            "device=h200 parallel.tensor_parallel_size=2 parallel.data_parallel_size=2",
        ),
        ("find gpt-oss-20b tp=2", "command=find model=gpt_oss_20b parallel.tensor_parallel_size=2"),
    ],
)
def test_a_line_as_people_say_it_is_these_settings(said: str, means: str) -> None:
    assert meant(said) == means.split()


def test_both_ways_compose_the_same_request() -> None:
    said = prepared_request(meant("llama-3.1-70b --on 2xh200 --context 32k --kv fp8")).prepared
    written = prepared_request(
        [
            "model=llama3_70b",
            "device=h200",
            "parallel.tensor_parallel_size=2",
            "scheduler.max_model_len=32768",
            "cache.cache_dtype=fp8",
        ]
    ).prepared
    assert said.config == written.config and said.resolved == written.resolved


@pytest.mark.parametrize("group", ["model", "device"])
def test_every_option_file_is_found_by_its_own_name_and_no_name_means_two(group: str) -> None:
    for path in sorted((CONF_DIR / group).glob("*.yaml")):
        assert option_named(group, path.stem) == path.stem
        assert option_named(group, path.stem.replace("_", "-").upper()) == path.stem
        head = [line for line in path.read_text().splitlines() if line.startswith("# also:")]
        for name in (name for line in head for name in line.removeprefix("# also:").split(",")):
            assert option_named(group, name.strip().rpartition("/")[2]) == path.stem
            assert "/" not in name or hub_name_is_shipped(name.strip()) == path.stem
        if group == "model" and (
            names := [
                line.split()[1]
                for line in path.read_text().splitlines()
                if line.startswith("name:")
            ]
        ):
            assert option_named(group, names[0].rpartition("/")[2]) == path.stem


@pytest.mark.parametrize(
    ("said", "preset"),
    [
        ("llama3.1-70b", "llama3_70b"),  # a separator more or less, where one model is called so
        ("llama-3-70b", "meta_llama_3_70b"),  # and no other model for want of one
        ("Qwen3-235B", "qwen3_235b_a22b"),
        ("Maverick", "llama_4_maverick_17b_128e_instruct"),
        ("Granite 4", "granite4"),
    ],
)
def test_a_model_is_found_by_what_people_call_it(said: str, preset: str) -> None:
    assert option_named("model", said) == preset


def test_models_that_a_word_begins_come_first_where_it_names_none() -> None:
    assert near_names("model", "Mistral")[0] == "mistral_7b"
    assert near_names("model", "Nemotron")[0] == "nemotron_h"


@pytest.mark.parametrize("said", ["llama-3-13b", "gpt-5", "qwen3_3", "falcon-1", "mixtral-8", ""])
def test_a_name_that_is_not_shipped_is_not_guessed(said: str) -> None:
    assert option_named("model", said, may_begin=said != "mixtral-8") is None


@pytest.mark.parametrize(
    ("said", "preset"),
    [
        ("llama-3-70b", "meta_llama_3_70b"),  # its own spelling, where llama3_70b is another model
        ("llama3_70b", "llama3_70b"),
        ("llama3:70b", "meta_llama_3_70b"),
        ("llama3.1:8b", "llama"),
        ("phi4", "phi_4"),
        ("gemma3:27b", "gemma3_27b"),
        ("gpt-oss:20b", "gpt_oss_20b"),
        ("mixtral-8x7b", "mixtral"),
        ("qwen3-next-80b", "qwen3_next"),
        ("qwq", "qwq_32b"),
        ("scout", "llama4_scout"),
        ("maverick", "llama_4_maverick_17b_128e_instruct"),
    ],
)
def test_a_model_is_found_as_people_shorten_its_name(said: str, preset: str) -> None:
    assert option_named("model", said, may_begin=True) == preset


@pytest.mark.parametrize("said", ["qwen", "kimi", "llama3", "gpt-oss", "phi-3"])
def test_the_first_words_of_several_models_are_told_with_all_of_them(said: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"a whole name, got '{said}', which stands for \d+ names; say one of .*, ",
    ):
        option_named("model", said, may_begin=True)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("nonsense", "command line: expected a command"),
        ("--on", "--on: expected a value"),
        ("--context --kv fp8", "--context: expected a value"),
        ("--on 3xh100 pp=2", "device: expected cards for 2 stages, got 3 cards"),
        ("--on 2xh100,4xh200", "device: expected one number of cards"),
        ("--on 0xh100", "device: expected 1 to 9,999 cards, got '0xh100'"),
        ("--on 999999999xh100", "device: expected 1 to 9,999 cards, got '999999999xh100'"),
        (f"--on {'9' * 5000}xh100", "device: expected 1 to 9,999 cards"),
        ("--on 4xh200 tp=2", "device: expected 2 cards, as TP x PP x DP, got 4"),
        ("llama gemma_2b", "got two, 'llama' and 'gemma_2b'"),
    ],
)
def test_what_means_nothing_is_refused_by_name(said: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        meant(said)
    assert problem in "\n".join(caught.value.lines())


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("30GiB", 30 * 2**30), ("30G", 30 * 2**30), ("100GB", 10**11), ("1.5K", 1536), ("8", 8)],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


def test_lengths_are_counted_in_1024s() -> None:
    assert (parse_length("32k"), parse_length("128K"), parse_length("1M")) == (32768, 131072, 2**20)
    assert parse_length("32kk") == "32kk" and parse_length(7) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["llama-3.1-70bb", "--on", "h200"], "did you mean llama3_70b"),
        (["llama", "--on", "2xh100", "tp=4"], "expected 4 cards, as TP x PP x DP, got 2"),
        (["llama", "--context", "32k", "scheduler.max_model_len=8192"], "to be said once"),
        (["llama", "--onn", "h100"], "did you mean --on?"),
        (["llama", "--users", "-1"], "want.requests: expected a whole number of users from 1"),
        (["llama", "--users", "0"], "want.requests: expected a whole number of users from 1"),
    ],
)
def test_words_that_contradict_or_nearly_mean_something_are_told_so(words, said, capsys):
    assert run([*words, "report=text"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.splitlines()) == 1


def test_help_names_the_flags_and_lists_a_group(capsys):
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in FLAGS)
    assert run(["--help", "model"]) == 0
    assert "gemma3_27b" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["llama", "llama3_70b"],
        ["llama", "qwen/qwen3-8b"],
        ["compare", "llama", "llama3_70b"],
        ["llama", "model=llama3_70b"],
    ],
)
def test_two_models_are_called_two_models(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([*words, "--on", "h100"]) == 2
    told = capsys.readouterr().err
    other = words[-1]
    assert f"expected one model, got two, 'llama' and '{other}'" in told
    assert "did you mean" not in told


def test_one_model_said_twice_alike_is_one():
    assert words_to_overrides(["llama", "model=Llama-3.1-8B"])[0] == "model=llama"


@pytest.mark.parametrize("words", [["null", "block"], ["out", "of", "reach"], ["peak"]])
def test_words_of_several_parts_need_no_quotes(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["explain", *words, "report=json"]) == 0
    assert f'"word": "{" ".join(words)}"' in capsys.readouterr().out
