"""`kvpipe doctor` of a line that drafts tokens: what drafts them takes memory, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_doctor import doctor, pasted, text_of

from kvpipe.engines.drafting import drafting_of
from kvpipe.front.main import run

LINE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --max-num-seqs 64"
EAGLE = {"method": "eagle3", "model": "org/EAGLE3-8B", "num_speculative_tokens": 3}


def with_draft(**said: object) -> str:
    return f"{LINE} --speculative-config '{json.dumps(said)}'"


def test_a_draft_that_is_not_counted_is_told_and_nothing_surely_fits(tmp_path: Path) -> None:
    answer = doctor(pasted(tmp_path, with_draft(**EAGLE)), "device=h100_80gb")
    assert "the draft (org/EAGLE3-8B) is not counted" in text_of(answer)
    assert (answer.status, answer.exit_code) == ("may_not_fit", 0)
    small = with_draft(**EAGLE).replace("8192", "131072")
    refused = doctor(pasted(tmp_path, small), "device=l4")
    assert "Planned without the draft, and may fit: --max-model-len" in text_of(refused)
    assert "surely runs" not in text_of(refused) and refused.status == "does_not_fit"


@pytest.mark.parametrize("method", ["ngram", pytest.param("suffix", marks=pytest.mark.full)])
def test_what_is_looked_up_in_the_request_has_nothing_to_count(method: str, tmp_path: Path) -> None:
    line = with_draft(method=method, num_speculative_tokens=3)
    answer = doctor(pasted(tmp_path, line), "device=h100_80gb")
    assert answer.status == "fits" and "not counted" not in text_of(answer)


@pytest.mark.parametrize(
    ("words", "method", "model"),
    [
        (["--speculative-config", json.dumps(EAGLE)], "eagle3", "org/EAGLE3-8B"),
        (["-sc", "{method:eagle3,model:org/EAGLE3-8B}"], "eagle3", "org/EAGLE3-8B"),
        (["--speculative-model=org/d", "--num-speculative-tokens", "5"], "", "org/d"),
        (["--speculative-config.method", "mtp"], "mtp", ""),
    ],
)
def test_every_form_of_the_flag_names_what_drafts(
    words: list[str], method: str, model: str
) -> None:
    found = drafting_of(words)
    assert found is not None and (found.method, found.model) == (method, model)
    assert drafting_of(["--max-model-len", "8192"]) is None


def test_run_says_on_its_first_screen_that_a_draft_is_not_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["llama", "--on", "h100", "--context", "8k", "scheduler.num_speculative_tokens=3"]
    assert run(words) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "its weights and its cache are not counted" in screen
    assert "model=hf model.path=FOLDER model.draft=FOLDER" in screen
