"""The first fleet with the least memory of the estimate: counted by runs and replays of its own."""

from __future__ import annotations

import json

import pytest

from kvpipe.answers.low_end import users_at_low_end
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import plan_of, profile_ranks

pytestmark = pytest.mark.full
MODEL = ("model=gemma3_27b", "engine=vllm", "backend=meta")
LENGTH = 16384


def status(words: list[str], capsys) -> str:
    run([*words, "report=json"])
    return str(json.loads(capsys.readouterr().out)["status"])


@pytest.mark.parametrize(("users", "sure"), [(100, True), (104, False)])
def test_what_only_the_best_value_serves_may_not_fit(users, sure, tmp_path, capsys, monkeypatch):
    """One replica of two cards, 104 users by the best value; `run` says as much of each number."""
    monkeypatch.chdir(tmp_path)
    server = ["device=h200", "parallel.tensor_parallel_size=2", f"scheduler.max_model_len={LENGTH}"]
    made = prepared_request([*MODEL, *server]).prepared
    low = users_at_low_end(plan_of(made), profile_ranks(made), 104)
    assert 1 < low < 104
    asked = low if sure else users
    load = [f"want.requests={asked}", f"want.length={LENGTH}", "want.device=[h200]"]
    assert run(["find", *MODEL, *load, "hydra.run.dir=out"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "out/result.json").read_text())["status"]
    assert found == status([*MODEL, *server, f"want.requests={asked}"], capsys)
    assert found == ("fits" if sure else "may_not_fit")
    told = f"the first serves the load, too ({low} users each)"
    assert told in out if sure else f"each of the first has {low} users: 2 replicas would" in out
    assert status([*MODEL, *server, f"want.requests={low + 1}"], capsys) == "may_not_fit"


@pytest.mark.parametrize(("prompt", "sure"), [(16_000, True), (36_000, False)])
def test_the_first_fleet_of_a_trace_is_replayed_with_the_least_memory_too(
    prompt, sure, tmp_path, capsys, monkeypatch
) -> None:
    """A card whose cache holds 39,000 tokens by the best value, and 31,000 by the least."""
    monkeypatch.chdir(tmp_path)
    asked = ["trace=synthetic", "trace.requests_per_second=0.01", "trace.max_requests=3"]
    asked += [f"trace.prompt_tokens={prompt}", "trace.output_tokens=100", "trace.spread=0"]
    model, length = ["model=llama", "engine=vllm", "backend=meta"], prompt + 100
    words = ["find", *model, *asked, "want.device=[rtx_4090]", f"want.length={length}"]
    assert run([*words, "hydra.run.dir=out"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    best = json.loads((tmp_path / "out/find.json").read_text())["fleets"][0]
    assert (best["cards"], best["replicas"]) == (1, 1)
    card = ["device=rtx_4090", f"scheduler.max_model_len={length}"]
    made = prepared_request([*model, *card]).prepared
    low = min(rank.available_kv.at_least for rank in profile_ranks(made).ranks)
    alone = run(["replay", *model, *card, *asked, f"cache.kv_cache_memory_bytes={low}"])
    assert (alone == 0) == sure
    assert ("the first serves the load, too (replayed)" in out) == sure
    assert ("the first does not serve the load: the weights or one request do" in out) != sure
    told = json.loads((tmp_path / "out/result.json").read_text())["status"]
    assert told == ("fits" if sure else "may_not_fit")


@pytest.mark.full
def test_each_row_has_its_verdict_and_the_last_line_has_that_of_the_first(
    tmp_path, capsys, monkeypatch
) -> None:
    """80 columns hold the table; each row as `run` says of a server of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    load = ["llama-3.1-70b", "want.requests=16", "want.length=32768"]
    assert run(["find", *load, "want.device=[l40s]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split("  ")[-1].strip() for line in lines if " x TP " in line][:5]
    assert rows == ["may not fit", "may not fit", "fits", "may not fit", "fits"]
    assert lines[-1].startswith("MAY NOT FIT: 16 requests of 32,768 tokens on 8 cards: 1 x TP 8")
    for row, users, ranks in ((0, 16, "8"), (2, 16, "8 parallel.pipeline_parallel_size=2")):
        words = ["device=l40s", *f"tp={ranks}".split(), "scheduler.max_model_len=32768"]
        told = status([load[0], *words, f"want.requests={users}"], capsys)
        assert told == rows[row].replace(" ", "_")


def test_no_fleet_is_told_without_a_table_and_with_a_verdict(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    load = ["llama-3.1-405b", "want.requests=16", "want.length=32768"]
    assert run(["find", *load, "want.device=[t4]"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert not any("users each" in line for line in lines)
    assert any("8 candidates, 0 serve the load" in line for line in lines)
    assert lines[-1] == "DOES NOT FIT: 16 requests of 32,768 tokens on any of t4"


def test_a_card_beside_the_cards_to_choose_from_is_refused(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["find", "llama", "--on", "8xl40s", "want.device=[h100]"]) == 2
    told = capsys.readouterr().err
    assert "device: expected nothing beside want.device, which names the cards, got l40s" in told
    assert "parallel.tensor_parallel_size: expected nothing beside want.device" in told
