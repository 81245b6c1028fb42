"""One definition of a load: what run, find, replay and compare answer is the same count of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvpipe.cache.load import ENDS, Load, most_running
from kvpipe.front.main import run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def counted(load: Load, peak: int, steady: int) -> int:
    """Slow and obvious: each request by itself."""
    return sum(peak if i < load.prefilling else steady for i in range(load.requests))


def test_a_load_is_the_sum_of_its_requests() -> None:
    for requests in range(1, 6):
        for reading in range(requests + 1):
            load = Load(requests=requests, length=100, prefilling=reading)
            assert load.units(7, 4) == counted(load, 7, 4)
            assert load.units(4, 4) == counted(load, 4, 4)


def test_the_ends_of_a_load_have_names() -> None:
    names = [Load(requests=3, length=9, prefilling=k).name for k in range(4)]
    assert names == ["steady", "running", "2 prefilling", "peak"]
    assert Load(requests=1, length=9, prefilling=1).name == "peak"
    assert {"steady", "running", "peak"} == set(ENDS)


def test_the_largest_running_load_fits_and_one_request_more_does_not() -> None:
    for usable in range(60):
        for peak, steady in ((7, 4), (4, 4), (9, 1)):
            most = most_running(usable, peak, steady)
            larger = Load(requests=most + 1, length=1, prefilling=1)
            assert counted(larger, peak, steady) > usable
            if most:
                held = Load(requests=most, length=1, prefilling=1)
                assert counted(held, peak, steady) <= usable


def answered(capsys, *words: str) -> tuple[int, dict]:
    code = run([*words, "backend=meta", "report=json"])
    return code, json.loads(capsys.readouterr().out)


def test_run_find_and_compare_count_one_load_alike(capsys) -> None:
    asked = ["gemma-3-27b", "--on", "h200", "--context", "32k"]
    _, planned = answered(capsys, *asked)
    held = planned["capacity"]
    users = held["requests_running"]
    assert held["requests_at_peak"] < users <= held["requests_steady"]
    for requests, serves in ((users, 0), (users + 1, 1)):
        load = ["want.length=32768", f"want.requests={requests}"]
        code, found = answered(capsys, "find", "gemma-3-27b", "--on", "h200", *load)
        assert code == serves and found["load"]["name"] == "running"
        assert answered(capsys, *asked, f"--users={requests}")[0] == serves
    _, compared = answered(capsys, "compare", *asked, "engines=[kvpipe]")
    told = compared["engines"][0]["plan"]["users"]
    assert (told["peak"], told["steady"]) == (held["requests_at_peak"], held["requests_steady"])


@pytest.mark.parametrize("engine", ["kvpipe", "sglang"])
def test_copies_share_the_users_that_were_asked_for(engine: str, capsys) -> None:
    """Data parallelism: n users on d copies are ceil(n / d) users on one, in every command."""
    alone = ["llama", "--on", "h100", f"engine={engine}", "--context", "8k"]
    _, told = answered(capsys, *alone)
    most = told["users"]["steady"] if engine == "sglang" else told["capacity"]["users"]
    assert answered(capsys, *alone, f"--users={most}")[0] == 0
    assert answered(capsys, *alone, f"--users={most + 1}")[0] == 1
    for users, serves in ((3 * most, 0), (3 * most + 1, 1)):
        words = [*alone, "parallel.data_parallel_size=3", f"--users={users}"]
        code, told = answered(capsys, *words)
        assert code == serves
        if engine == "sglang":
            continue
        held = told["capacity"]
        assert (held["users"], held["copies"]) == (3 * most, 3)
        code, found = answered(capsys, "find", *words, "want.length=8192")
        assert code == serves and found["want"]["requests"] == users
        assert found["load"]["requests"] == -(-users // 3)


def test_advice_for_copies_serves_the_users_that_were_asked_for(capsys) -> None:
    for users, most in ((109, 256), (101, 50)):
        asked = {
            "scheduler.max_model_len": 8192,
            "scheduler.max_num_seqs": most,
            "parallel.data_parallel_size": 2,
            "want.requests": users,
        }
        words = ["llama", "device=h100"]
        code, told = answered(capsys, *words, *(f"{k}={v}" for k, v in asked.items()))
        assert code == 1 and told["advice"]
        for change in told["advice"]:
            changed = {**asked, **change}
            assert answered(capsys, *words, *(f"{k}={v}" for k, v in changed.items()))[0] == 0
    assert {"scheduler.max_num_seqs": 51} in told["advice"]


def test_the_replicas_of_a_fleet_are_its_copies(capsys) -> None:
    """parallel.data_parallel_size is not counted beside them."""
    words = ["find", "llama", "want.device=[h100]", "want.requests=100", "want.length=8192"]
    assert "data-parallel" not in str(answered(capsys, *words)[1]["fleets"])
    assert run([*words, "parallel.data_parallel_size=2"]) == 2
    assert "parallel.data_parallel_size: expected nothing beside want" in capsys.readouterr().err


def test_the_scheduler_stands_beside_memory_in_one_line(capsys) -> None:
    run(["llama", "--on", "h100", "--context", "1k"])
    assert "256 of 1,024 tokens each: 434 by memory, 256 by max_num_seqs" in capsys.readouterr().out


def test_find_and_run_agree_about_more_requests_than_the_scheduler_runs(capsys) -> None:
    load = ["want.requests=300", "want.length=512"]
    code, found = answered(capsys, "find", "llama", "--on", "h100", *load)
    asked = next(f for f in found["findings"] if f["question"] == "as asked")
    assert code == 1 and asked["setting"] == "scheduler.max_num_seqs=300"
    assert "869 by memory, 256 by max_num_seqs" in asked["limit"]
    words = ["llama", "--on", "h100", "--context", "512", "--users", "300"]
    assert answered(capsys, *words)[0] == 1
    assert answered(capsys, *words, asked["setting"])[0] == 0
    assert answered(capsys, "find", "llama", "--on", "h100", *load, asked["setting"])[0] == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "report=full"], [*ENDS.values()]),
        (["find", "want.requests=4", "want.length=8192"], [ENDS["running"]]),
        (["compare", "engines=[kvpipe]"], [ENDS["running"]]),
        (["compare", "engines=[kvpipe]", "report=full"], [ENDS["steady"], ENDS["peak"]]),
        (["replay", "trace=synthetic", "trace.max_requests=4"], [ENDS["steady"]]),
    ],
)
def test_every_command_names_the_load_it_answers_for(words, named, capsys) -> None:
    command, *settings = words
    run([command, "llama", "--on", "h100", "--context", "8k", "backend=meta", *settings])
    said = " ".join(capsys.readouterr().out.split())
    assert all(words in said for words in named)
