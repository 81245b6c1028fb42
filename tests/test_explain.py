"""Every word that the report of a run uses as a label is explained."""

from __future__ import annotations

import re

import pytest

import kvpipe
from kvpipe.front.main import run
from kvpipe.report.accounts import CAUSES
from kvpipe.report.words import WORDS, explained


def test_every_cause_of_bytes_and_every_word_that_see_names_is_explained():
    for cause in CAUSES:
        assert explained(cause) is not None, cause
    for word, entry in WORDS.items():
        assert entry.text and not entry.text.endswith("."), word
        if entry.see and "." not in entry.see and entry.see != "grouping":
            assert explained(entry.see) is not None, entry.see


def test_the_causes_of_a_full_report_are_explained_as_they_are_printed():
    request = ["model=gemma3_27b", "device=h200", "backend=meta", "report=full"]
    text = kvpipe.run(request).text(100)
    table = text[text.index("Where the bytes go") :].split("\n\n")[0].splitlines()[2:-1]
    labels = [re.split(r"\s{2,}", line.strip())[0] for line in table]
    assert len(labels) > 5
    known = {"KV cache", "free", "total", "context", "CUDA graphs", "loading"}
    assert [label for label in labels if explained(label) is None and label not in known] == []


@pytest.mark.parametrize("said", ["null block", "Null-Block", "null_block", "blocks"])
def test_a_word_is_found_however_it_is_written(said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["explain", said]) == 0
    assert "block" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())  # nobody looks for it in a folder


def test_an_unknown_word_lists_the_known_ones(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["explain", "peek"]) == 2
    assert "did you mean 'peak'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "said", ["headroom", "may not fit", "running", "lost", "longest", "closed form"]
)
def test_the_words_of_a_verdict_a_fleet_and_a_comparison_are_explained(said):
    assert explained(said) == said


@pytest.mark.parametrize(
    "words",
    [
        "llama --on h100 --context 8k engine=vllm",
        "find llama --on h100,l4 --context 8k --users 8",
        "find llama --on h100 --context 8k --users 8",
        "compare llama --on h100 --context 8k",
        "replay llama --on h100 trace=synthetic trace.max_requests=8",
    ],
)
def test_every_label_and_header_of_a_first_screen_is_explained(
    words, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    labels = {
        line[:12].partition("  ")[0] for line in lines if re.match(r"[a-z][a-z ]{1,10}  ", line)
    }
    headers = [line for line in lines if re.match(r"  (cards|engine)  ", line)]
    labels |= {word for line in headers for word in re.split(r"\s{2,}", line.strip())}
    labels = {label for label in labels if not re.search(r"\d", label)}
    assert [label for label in sorted(labels) if explained(label) is None] == []
    assert labels
