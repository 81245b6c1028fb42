"""Loads that cannot be served as they were said: one line each, exit 2, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvpipe.front.main import run

MODEL = ("model=llama", "engine=vllm", "backend=meta")
SMALL = ("trace=synthetic", "trace.max_requests=12")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AT = "2023-11-16 18:15:46.6805900"
NO_BANDWIDTH = ("device=h100", "device.bandwidth_bytes_per_s=null")


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("azure", f"{AZURE}{AT},374,44\n{AT},,44\n", "line 3 of"),
        ("azure", f"{AZURE}{AT},374\n", "(2 columns of 3)"),
        ("azure", f"{AZURE}{AT},0,44\n", "(a prompt of 0 tokens, which no engine serves)"),
        ("vidur", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n7\n", "of 4)"),
        ("mooncake", json.dumps({"timestamp": "x", "input_length": 5, "hash_ids": [1]}), "'x' is"),
        ("mooncake", json.dumps({"timestamp": True, "input_length": 5, "hash_ids": [1]}), "True"),
    ],
)
def test_a_hole_in_a_trace_is_named_in_words_of_its_own(
    kind: str, text: str, said: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace").write_text(text)
    for words in (["replay", "device=h100"], ["find", "want.device=[h100]"]):
        assert run([*words, *MODEL, f"trace={kind}", "trace.path=trace"]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("kvpipe: trace.path: expected a request in") and said in line
        assert "unpack" not in line and "operand" not in line
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["want.prices={h100: 1, h100_80gb: 2}"], "want.prices: expected one price of a card, got"),
        ([*SMALL, "want.requests=50"], "want.requests: expected nothing: a trace says how many"),
    ],
)
def test_what_would_be_dropped_in_silence_is_refused(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["find", *MODEL, "want.device=[h100]", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_device_without_bandwidth_shows_no_time_and_gives_no_verdict_on_it(
    tmp_path, capsys, monkeypatch
) -> None:
    """A thousand requests a second would be overload by any clock that is known."""
    monkeypatch.chdir(tmp_path)
    words = ["replay", *MODEL, *NO_BANDWIDTH, *SMALL, "trace.requests_per_second=1000"]
    words += ["scheduler.max_num_seqs=1"]
    assert run([*words, "hydra.run.dir=out"]) == 0
    out = capsys.readouterr().out
    assert not any(word in out for word in ("first token", "each token", "overloaded", "wait  "))
    assert "no time is shown: device h100_80gb names no bandwidth" in out
    document = json.loads((tmp_path / "out/replay.json").read_text())
    names = ("wait", "first_token", "each_token", "overload")
    assert [document[name] for name in names] == [None] * 4
    assert document["counts"]["finished"] == 12
    assert run([*words, "trace.step_seconds=0.5"]) == 1
    assert "overloaded" in capsys.readouterr().out


def test_a_wait_that_nobody_can_know_is_not_promised(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["want.first_token_ms=900", "want.token_ms=90"]
    assert run(["replay", *MODEL, *NO_BANDWIDTH, *SMALL, *asked]) == 2
    told = capsys.readouterr().err
    for name in ("first_token", "token"):
        assert f"want.{name}_ms: expected steps whose time is known, got no time is" in told
    packed = ["model=llama", "engine=vllm_0_33", "want.caches=[int8_per_token_head]"]
    card = ["find", *packed, "want.device=[h100]", "want.length=4096"]
    for load in (["want.requests=4", "want.token_ms=90"], SMALL):
        assert run([*card, *load]) == 1
        out = " ".join(capsys.readouterr().out.split())
        assert "no time is shown: what a step reads of a int8_per_token_head cache is not" in out


@pytest.mark.full
def test_prices_of_some_cards_rank_nothing_and_it_is_said(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    card = ["find", *MODEL, "want.device=[h100,l4]", "want.length=4096", "report=text"]
    for load in (["want.requests=20"], SMALL):
        for prices, told in (("{l4: 1.25}", True), ("{l4: 1.25, h100: 3}", False)):
            assert run([*card, *load, f"want.prices={prices}"]) == 0
            out = " ".join(capsys.readouterr().out.split())
            assert (
                "ranked by cards, not by cost: want.prices has none of h100_80gb" in out
            ) == told


def test_times_that_run_backwards_are_put_in_order(tmp_path, capsys, monkeypatch) -> None:
    """As if the file had been sorted: the same replay."""
    monkeypatch.chdir(tmp_path)
    rows = [f"2023-11-16 18:15:{second}.5,{90 + second},8\n" for second in (59, 41, 50)]
    found = []
    for name, lines in (("as", rows), ("sorted", sorted(rows))):
        (tmp_path / name).write_text(AZURE + "".join(lines))
        words = ["replay", *MODEL, "device=h100", "trace=azure", f"trace.path={name}"]
        assert run([*words, "report=json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["counts"] == found[1]["counts"]
    assert found[0]["first_token"] == found[1]["first_token"]
