"""What a refused run advises: settings that cost the asked users nothing, pairs of settings where
no single one is enough, and of two lengths both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvpipe.front.main import run

SEQS, LENGTH = "scheduler.max_num_seqs", "scheduler.max_model_len"
CARD = ["llama-3.1-70b", "--on", "2xh100"]


def advice_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Every change that a refused run names."""
    assert run([*words, "report=json"]) == 1
    return list(json.loads(capsys.readouterr().out)["advice"])


def serves(words: list[str], change: dict[str, Any]) -> bool:
    again = [f"{key}={value}" for key, value in change.items()]
    kept = [word for word in words if word.partition("=")[0] not in change]
    return run([*kept, *again, "report=none"]) == 0


@pytest.mark.parametrize(
    "load",
    ["--context 32k engine=vllm", "--context 2208 --users 16 --kv fp8"],
)
def test_fewer_requests_at_once_are_told_where_they_cost_the_asked_users_nothing(
    load: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*CARD, *load.split()]
    told = [change for change in advice_of(words, capsys) if set(change) == {SEQS}]
    assert len(told) == 1 and told[0][SEQS] >= 16
    assert serves(words, told[0])


def test_where_one_setting_is_not_enough_two_together_are_told_and_serve(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*CARD, "--context", "32k", "--users", "16"]
    pairs = [change for change in advice_of(words, capsys) if len(change) == 2]
    assert {"cache.cache_dtype": "fp8", "weights": "awq"} in pairs and len(pairs) <= 2
    assert all(serves(words, pair) for pair in pairs)
    for pair in pairs:  # no one of the two is enough
        assert not any(serves(words, {key: value}) for key, value in pair.items())


def test_weights_that_no_published_file_of_this_name_has_are_told_to_need_a_checkpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run([*CARD, "--context", "32k", "--users", "16", "report=none"])
    assert (
        "weights=awq (a cache of 8 bits, needs a checkpoint of 4 bits)" in capsys.readouterr().err
    )


def test_beside_a_length_that_surely_runs_the_longest_of_the_best_value_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*CARD, "--context", "32k", "--users", "16", f"{SEQS}=16"]
    told = [change[LENGTH] for change in advice_of(words, capsys) if set(change) == {LENGTH}]
    sure, longest = told
    assert sure < longest
    assert all(serves([*CARD, "--users", "16", f"{SEQS}=16"], {LENGTH: n}) for n in told)
    assert not serves([*CARD, "--users", "16", f"{SEQS}=16"], {LENGTH: longest + 16})


def test_what_a_full_card_is_told_to_set_works(capsys: pytest.CaptureFixture[str]) -> None:
    """No share is named that leaves room for a block and not for a request."""
    words = ["gemma_2_9b", "--on", "l4", "--context", "8k"]
    told = advice_of(words, capsys)
    assert told and all(serves(words, change) for change in told)
    run([*words, "report=none"])
    said = capsys.readouterr().err
    assert "Raise it" not in said and "The first block needs more than 0.9" in said
