"""`replay` exits with 0 when the load was served as it was asked for, else with 1."""

from __future__ import annotations

import json

import pytest

from kvpipe.front.main import run

TRACE = ["trace=synthetic", "trace.max_requests=30", "report=json"]


@pytest.fixture
def answer(capsys, tmp_path, monkeypatch):
    """Words -> (exit code, the document, what stands on stderr)."""
    monkeypatch.chdir(tmp_path)

    def asked(*words: str):
        cards = any(word.startswith("want.device=") for word in words)
        code = run([*words, *TRACE, *([] if cards else ["device=h100_80gb"])])
        out = capsys.readouterr()
        return code, json.loads(out.out), out.err

    return asked


def test_a_request_that_is_turned_away_was_not_served(answer) -> None:
    code, whole, err = answer("replay", "llama")
    assert (code, err) == (0, "") and not whole["counts"]["too_long"]
    code, cut, err = answer("replay", "llama", "scheduler.max_model_len=1024")
    away = cut["counts"]["too_long"]
    assert 0 < away < 30 and cut["counts"]["finished"] == 30 - away
    assert code == 1 and f"{away} of 30 requests are longer than 1,024 tokens" in err


@pytest.mark.full
@pytest.mark.parametrize("percentile", [50, 90, 99])
@pytest.mark.parametrize(
    ("name", "figure"), [("wait", "wait"), ("first_token", "first_token"), ("token", "each_token")]
)
def test_a_replay_is_held_to_the_waits_that_are_asked_for(answer, name, figure, percentile) -> None:
    words = ("replay", "llama", "trace.requests_per_second=4")
    _, whole, _ = answer(*words)
    found = 1000 * whole[figure][f"p{percentile}"]
    assert found > 0
    for most, code in ((found * 1.0001, 0), (found * 0.9999, 1)):
        bound = (f"want.percentile={percentile}", f"want.{name}_ms={most!r}")
        got, _, err = answer(*words, *bound)
        assert (got, bool(err)) == (code, bool(code)), err
        assert not err or f"want.{name}_ms: {percentile}% of the requests" in err


@pytest.mark.full
def test_a_fleet_that_turns_requests_away_does_not_serve_the_trace(answer) -> None:
    find = ("find", "llama", "want.device=[h100]", "want.first_token_ms=10000")
    assert answer(*find)[0] == 0
    code, _, err = answer(*find, "want.length=1024")
    assert code == 1 and "were turned away" in err
