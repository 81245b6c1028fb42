"""A command is a plugin: every registered one keeps the same promises, whoever wrote it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvpipe.errors import ConfigError
from kvpipe.front.completion import command_words
from kvpipe.front.flags import flags_to_words
from kvpipe.front.help import EXAMPLES
from kvpipe.front.main import run
from kvpipe.front.words import words_to_overrides
from kvpipe.plugins import COMMANDS
from kvpipe.request.confdir import CONF_DIR

NAMES = COMMANDS.names()
ENDING = [name for name in NAMES if not COMMANDS.get(name).stays]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def example(name: str) -> list[str]:
    program, *words = shlex.split(COMMANDS.get(name).example)
    assert program == "kvpipe"
    return words


def left(folder: Path) -> set[str]:
    (run_folder,) = folder.glob("outputs/*/*/")
    return {path.name for path in run_folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_yaml_and_its_help(name: str, capsys) -> None:
    assert (CONF_DIR / "command" / f"{name}.yaml").is_file()
    assert run([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert COMMANDS.get(name).example in said
    assert max(map(len, said.splitlines())) <= 100
    for section in COMMANDS.get(name).reads:
        assert f"{section}." in said


@pytest.mark.parametrize("name", ENDING)
def test_the_example_of_every_command_works_and_leaves_its_files(name, capsys, folder) -> None:
    assert run(example(name)) == 0
    assert capsys.readouterr().out
    if COMMANDS.get(name).leaves:
        assert left(folder) == {*COMMANDS.get(name).files, "result.json"}
    else:
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ENDING)
def test_every_command_answers_as_one_json_document_which_it_also_writes(
    name, capsys, folder
) -> None:
    assert run([*example(name), "report=json"]) == 0
    document = json.loads(capsys.readouterr().out)
    if not COMMANDS.get(name).leaves:
        assert list(folder.iterdir()) == []
        return
    (written,) = folder.glob(f"outputs/*/*/{COMMANDS.get(name).files[0]}")
    assert json.loads(written.read_text()) == document


@pytest.mark.parametrize(
    "name", [n if n == "find" else pytest.param(n, marks=pytest.mark.full) for n in ENDING]
)
def test_every_command_can_be_swept_and_be_silent(name, capsys, folder) -> None:
    words = [*example(name), "cache.block_size=16,32"]
    assert run(["-m", *words]) == 0
    assert "2 jobs, 2 fit" in capsys.readouterr().out
    assert run([*example(name), "report=none"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", NAMES)
def test_completion_offers_every_command_and_goes_on_after_it(name, monkeypatch) -> None:
    monkeypatch.setenv("COMP_LINE", f"kvpipe {name[:2]}")
    assert name in command_words()
    monkeypatch.setenv("COMP_LINE", f"kvpipe {name} mod")
    assert command_words() == []
    import os

    assert os.environ["COMP_LINE"] == "kvpipe mod"
    monkeypatch.setenv("COMP_LINE", "kvpipe model=llama ca")
    assert command_words() == []


def test_the_examples_of_the_first_help_screen_are_requests_that_fit(folder, capsys) -> None:
    from kvpipe.front.prepared import prepared_request

    for _, command in EXAMPLES:
        words = shlex.split(command)[1:]
        if "-m" in words or "./my-model" in words:
            continue
        prepared_request(words_to_overrides(flags_to_words(words)))
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES) and len(said.splitlines()) <= 52


def test_an_unknown_word_lists_every_command() -> None:
    with pytest.raises(ConfigError) as caught:
        words_to_overrides(["walk"])
    assert all(name in str(caught.value) for name in NAMES)


ONE_MODEL = ["llama3_70b", "device=h100", "parallel=tp2", "cache=fp8"]


@pytest.mark.parametrize("engine", ["engine=kvpipe", "engine=vllm_0_33", "engine=vllm_0_17"])
def test_run_find_and_replay_plan_with_the_same_memory(engine: str, monkeypatch) -> None:
    import kvpipe
    from kvpipe.answers.search import Search, read_want
    from kvpipe.errors import DoesNotFit
    from kvpipe.front.prepared import prepared_request
    from kvpipe.pipeline import plan_of

    words = [*ONE_MODEL, engine, "scheduler.max_model_len=4096"]
    made = prepared_request(words_to_overrides(words)).prepared
    wanted = {**made.config.want, "requests": 1, "length": 4096}
    sought = Search(prepared=made, want=read_want(wanted, made)).planned({}, 4096)
    try:
        ran = kvpipe.run([*words, "backend=meta"]).plan.num_blocks
    except DoesNotFit:
        assert "leave nothing" in sought
        return
    assert ran == plan_of(made).num_blocks == sought.plan.num_blocks


def test_an_engine_implies_its_batch_budget_and_its_share_unless_said_otherwise() -> None:
    from kvpipe.front.prepared import prepared_request

    def resolved(*words: str):
        return prepared_request(
            words_to_overrides(["llama", "device=h100", *words])
        ).prepared.resolved

    own, vllm = resolved(), resolved("engine=vllm_0_33")
    assert (own.limits.max_num_batched_tokens, own.max_num_seqs) == (2048, 256)
    assert own.gpu_memory_utilization == 0.9
    assert (vllm.limits.max_num_batched_tokens, vllm.max_num_seqs) == (8192, 1024)
    assert vllm.gpu_memory_utilization == 0.92
    said = resolved(
        "engine=vllm_0_33", "scheduler.max_num_seqs=7", "cache.gpu_memory_utilization=0.5"
    )
    assert (said.max_num_seqs, said.gpu_memory_utilization) == (7, 0.5)


@pytest.mark.full
@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_shell_is_given_a_script_alone_and_candidates_one_by_one(shell: str) -> None:
    """fish takes each line for a candidate; bash and zsh read one script, which is evaluated."""
    kvpipe = [sys.executable, "-m", "kvpipe"]
    script = subprocess.run([*kvpipe, "-sc", f"install={shell}"], capture_output=True, text=True)
    assert script.stdout.split()[0] == ("function" if shell == "fish" else "export")
    query = "fish" if shell == "fish" else "bash"
    for typed, found in (
        ("fi", {"find", "fit_speed"}),
        ("find model=llama3_7", {"model=llama3_70b"}),
    ):
        line = f"kvpipe {typed}"
        env = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))}
        told = subprocess.run(
            [*kvpipe, "-sc", f"query={query}"], capture_output=True, text=True, env=env
        ).stdout
        offered = told.split("\n") if shell == "fish" else told.split()
        assert found <= set(offered), told
