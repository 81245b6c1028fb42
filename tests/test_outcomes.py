"""How a command ends: three verdicts, two exit codes of MAY NOT FIT, one document that tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpipe.front.main import run as main

pytestmark = pytest.mark.full  # a second or more each

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ON = ["model=llama3_70b", "--on", "2xh100"]
NARROW = [*ON, "--users", "16", "--kv", "fp8"]  # 0 B to 5.03 GiB of cache
REFUSES = "MAY NOT FIT (not at the best value): "


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trace_of(*requests: tuple[int, int]) -> list[str]:
    rows = [f"2023-11-16 18:1{n}:03.0000000,{p},{o}\n" for n, (p, o) in enumerate(requests)]
    Path("requests.csv").write_text(HEAD + "".join(rows))
    return ["replay", "trace=azure", "trace.path=requests.csv"]


def last(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def document_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main([*words, "report=json"])
    return code, json.loads(capsys.readouterr().out)


# --- replay ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("requests", "more"),
    [
        ([(17_000, 400), (1200, 100)], ["--context", "17632"]),
        ([(1200, 100), (800, 50)], ["--context", "2192", "--kv", "fp8"]),
    ],
)
def test_a_replay_may_not_fit_where_the_low_end_of_the_memory_cannot_start(requests, more, capsys):
    """The low end is 0 bytes: not one request could run, however short."""
    assert main([*trace_of(*requests), *ON, *more]) == 0
    assert last(capsys).startswith("MAY NOT FIT: 2 requests replayed")


def test_a_replay_fits_where_its_peak_fits_into_the_low_end(capsys):
    assert main([*trace_of((1200, 100), (800, 50)), "model=llama", "--on", "h100"]) == 0
    assert last(capsys).startswith("IT FITS: 2 requests replayed")


def test_a_replay_that_only_the_high_end_would_serve_is_not_counted_on(capsys):
    """Longer than `auto` makes a request by the best value, not by the most memory."""
    assert main([*trace_of((17_700, 40), (1200, 100)), *ON]) == 1
    assert last(capsys).startswith(REFUSES)


# --- what a script is told ------------------------------------------------------------------
@pytest.mark.parametrize(("length", "code"), [("2192", 0), ("2208", 1)])
def test_a_document_tells_the_two_exit_codes_of_may_not_fit_apart(length, code, capsys):
    for command in ("run", "find", "compare"):
        engines = ["engines=[kvpipe,vllm]"] if command == "compare" else []
        ended, document = document_of([command, *NARROW, "--context", length, *engines], capsys)
        assert (ended, document["exit_code"], document["status"]) == (code, code, "may_not_fit")
        assert document["verdict"].startswith("MAY NOT FIT")


@pytest.mark.parametrize(("length", "says"), [("2192", False), ("2208", True)])
def test_the_last_line_says_where_the_best_value_refuses(length, says, capsys):
    for words in (["find"], ["compare", "engines=[kvpipe]"]):
        main([*words, *NARROW, "--context", length])
        assert last(capsys).startswith(REFUSES) is says


def test_every_command_says_how_it_ended(capsys):
    short = ["model=llama", "--on", "h100", "--context", "8k"]
    for words in (
        ["run", *short, "backend=meta"],
        ["find", *short],
        ["compare", *short, "engines=[vllm]"],
        [*trace_of((1200, 100)), *short],
        ["run", *short, "engine=sglang"],
        ["doctor", "sample"],
    ):
        code, document = document_of(words, capsys)
        assert (code, document["status"], document["exit_code"]) == (0, "fits", 0), words
        assert document["verdict"], words
    assert document_of(["explain", "peak"], capsys)[1]["verdict"] is None
    code, document = document_of(["run", "model=llama3_70b", "--on", "l4"], capsys)
    assert (code, document["exit_code"], document["status"]) == (1, 1, "does_not_fit")
    assert document["verdict"] == document["errors"][0]


@pytest.mark.parametrize("engine", ["tensorrt_llm", "vllm"])
def test_compare_does_not_call_impossible_what_may_run(engine, capsys):
    words = ["compare", *ON, "--context", "32k", "--users", "1", f"engines=[vllm,{engine}]"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    may = out.splitlines()[-1].startswith("MAY NOT FIT")
    assert ("by the best value of the memory, an estimate" in err) is may


def test_a_replay_takes_no_users_not_even_one(capsys):
    """One is what nobody said, too: it was accepted and not read."""
    for users in ("1", "16"):
        words = [*trace_of((1200, 100)), "model=llama", "--on", "h100", "--users", users]
        assert main(words) == 2
        assert "a trace says how many requests come" in capsys.readouterr().err
        assert not Path("outputs").exists()


def test_a_replay_says_that_the_length_was_lowered(capsys):
    assert main([*trace_of((1200, 100)), "model=llama", "--on", "l4"]) == 0
    assert "max_model_len lowered from 131,072" in " ".join(capsys.readouterr().out.split())


def test_blocks_that_preempted_requests_find_again_are_called_their_own(capsys):
    """Counted as shared, where not one token of a prompt was cached for another request."""
    words = ["replay", "trace=azure_code_sample", "model=llama", "--on", "l4", "--context", "8k"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert "533 shared (found again by preempted requests: their own)" in " ".join(out.split())
    assert "overloaded, 233 s of arrivals became 355 s of work" in err
