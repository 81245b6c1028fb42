"""`kvpipe doctor`: the users that are asked for, what the scheduler caps, the width of its line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from test_doctor import doctor, pasted, text_of

from kvpipe.front.main import run
from kvpipe.text.json_words import broken_json

CARD = "device=l4"
FULL = pytest.mark.full
DRAFT = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "n": [1, {"a": "b,c"}]}


def test_users_that_do_not_fit_are_in_the_answer_and_keep_their_length_first(
    tmp_path: Path,
) -> None:
    line = "vllm serve Qwen/Qwen3-8B --max-model-len 32000"
    answer = doctor(pasted(tmp_path, line), CARD, "want.requests=8")
    assert "8 users of 32,000 tokens were asked for" in text_of(answer)
    assert "--max-model-len 32000 --tensor-parallel-size 4" in answer.fields["paste"]
    followed = doctor(pasted(tmp_path, answer.fields["paste"]), CARD, "want.requests=8")
    assert followed.status == "fits"


@FULL
def test_users_of_whom_some_run_are_named_once(tmp_path: Path) -> None:
    line = "vllm serve Qwen/Qwen3-8B --max-model-len 4000"
    text = text_of(doctor(pasted(tmp_path, line), CARD, "want.requests=8"))
    assert "of 8 users of 4,000 tokens, 4 run at once" in text and text.count("8 users") == 1


def test_a_scheduler_that_runs_fewer_than_memory_holds_is_told(tmp_path: Path) -> None:
    line = "vllm serve Qwen/Qwen3-8B --max-model-len 1024 --max-num-seqs {}"
    capped = text_of(doctor(pasted(tmp_path, line.format(4)), CARD))
    assert "at once, the longest 1,024; --max-num-seqs lets 4 of them run" in capped
    free = text_of(doctor(pasted(tmp_path, line.format(200)), CARD))
    assert "of them run" not in free


@pytest.mark.parametrize("width", [80, *(pytest.param(w, marks=FULL) for w in (60, 100))])
def test_the_line_to_run_is_within_the_screen_with_all_that_ends_its_lines(
    width: int, tmp_path: Path
) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-seqs 512 "
    line += f"--kv-cache-dtype auto --port 80 --speculative-config '{json.dumps(DRAFT)}'"
    answer = doctor(pasted(tmp_path, line), "device=h100_80gb")
    lines = [each.text for each in answer.lines(width)]
    assert max(map(len, lines)) <= width and len(lines) <= 20
    text = "\n".join(lines[lines.index("to run (planned):") + 1 :])
    words = shlex.split(text.replace("\\\n", " "))
    assert json.loads(words[words.index("--speculative-config") + 1]) == DRAFT


def test_json_that_would_read_otherwise_is_left_as_it_is() -> None:
    """A comma within a string is no place to break at."""
    line = """--config '{"key": "first,\\"second,\\"third,\\"fourth"}' \\"""
    assert broken_json(line, 20) == [line]
    assert broken_json("--config 'no {json}'", 5) == ["--config 'no {json}'"]


def test_a_cpus_budget_that_nobody_set_is_called_kvpipes_own(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=llama", "device=cpu", "scheduler.max_model_len=8192", "backend=meta"]
    assert run(words) == 1
    assert "1.00 GiB is kvpipe's own default for a CPU" in capsys.readouterr().err
    assert run([*words, "profiling.budget_bytes=1GiB"]) == 1
    assert "own default" not in capsys.readouterr().err
