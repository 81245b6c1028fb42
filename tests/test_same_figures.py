"""One request, one memory: every command plans it with the same figures and gives one verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import kvpipe
from kvpipe.answers.low_end import missing_at_low_end
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.page.planner import Planner
from kvpipe.page.position import Position

CARD = ["llama", "device=h100", "scheduler.max_model_len=8192"]
ENGINES = ["kvpipe", "vllm_0_33", "vllm_0_17", "vllm engine.version=0.21.0"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(capsys, *words: str) -> tuple[int, dict]:
    code = run([*words, "report=json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.full
@pytest.mark.parametrize(
    ("engine", "memory"), [("kvpipe", "utilization"), *((engine, "auto") for engine in ENGINES)]
)
def test_the_same_request_has_the_same_figures_in_every_command(engine, memory, capsys) -> None:
    asked = [*CARD, *f"engine={engine}".split(), f"profiling={memory}"]
    _, plan = told(capsys, "run", *asked)
    item = plan["memory"]["ranks"][0]["available_kv"]
    users = plan["capacity"]["users"]
    _, compared = told(capsys, "compare", *asked, *(["engines=[kvpipe]"] * (engine == "kvpipe")))
    row = compared["engines"][0]
    assert row["name"] == engine.split()[0]
    cache = sum(step["num_bytes"] for step in row["plan"]["budget"])
    assert (row["plan"]["users"]["steady"], cache) == (users, item["num_bytes"])
    _, replayed = told(capsys, "replay", *asked, "trace=synthetic", "trace.max_requests=2")
    assert replayed["usable_blocks"] == plan["capacity"]["usable_blocks"]
    one_more = ("may_not_fit", "does_not_fit")  # exit code 1 either way
    for more, status in ((0, ("fits", "may_not_fit")), (1, one_more)):
        load = ["want.length=8192", f"want.requests={users + more}"]
        code, found = told(capsys, "find", *asked, *load)
        again, ran = told(capsys, "run", *asked, f"want.requests={users + more}")
        assert found["status"] == ran["status"] and found["status"] in status
        assert code == again == more
    held = plan["plan"]["ranks"][0]["size_bytes"]
    assert f"--kv-cache-memory-bytes {held} " in plan["serve"]


def test_users_whom_the_low_end_of_the_memory_does_not_hold_may_not_fit(capsys) -> None:
    result = kvpipe.run([*CARD, "backend=meta"])
    most = result.plan.capacity.requests_running
    low = result.profile.ranks[0].available_kv.low_bytes
    block, reserved = result.plan.ranks[0].config.bytes_per_block, 1
    held = max(n for n in range(most + 1) if (n * 8192 // 16 + reserved) * block <= low)
    assert 1 < held < most
    assert not missing_at_low_end(result.plan, result.profile, held)
    assert missing_at_low_end(result.plan, result.profile, held + 1) == (
        ((held + 1) * 8192 // 16 + reserved) * block - low
    )
    for users, word in ((held, "IT FITS"), (held + 1, "MAY NOT FIT"), (most, "MAY NOT FIT")):
        answer = kvpipe.run([*CARD, "backend=meta", f"want.requests={users}"]).answer
        assert answer.verdict.text.startswith(word) and answer.exit_code == 0
        assert re.search(r", [\d.]+ GiB( of cache)? \([\d.]+ to [\d.]+\)$", answer.verdict.text)
        assert len(answer.verdict.text) <= 80


def test_find_says_may_not_fit_where_run_does_and_with_what_memory(capsys) -> None:
    code, found = told(capsys, "find", "gpt_oss_20b", "device=rtx_4090", "want.length=131072")
    assert code == 0 and found["status"] == "may_not_fit"
    (asked,) = [each for each in found["findings"] if each["question"] == "as asked"]
    assert asked["value"] == "may_not_fit" and asked["limit"].startswith("at worst ")
    assert re.search(r"may not fit, [\d.]+ GiB of cache \([\d.]+ to [\d.]+\)$", asked["answer"])


@pytest.mark.parametrize(
    "words", ["compare engines=[vllm]", "replay trace=synthetic trace.max_requests=2"]
)
def test_what_a_cpu_does_not_count_is_said_by_every_command(words, capsys) -> None:
    command, *more = words.split()
    deepseek = ["deepseek_v3", "device=cpu", "scheduler.max_model_len=8192"]
    run([command, *deepseek, *more])
    out = " ".join(capsys.readouterr().out.split())
    assert "626.9 GiB of weights are not counted" in out
    assert getattr(kvpipe, command)([*deepseek, *more]).answer.status == "may_not_fit"


# --- three verdicts: the range may straddle what is asked for on either side of its best value ---
def ends_by_hand(words: list[str]) -> tuple[int, int, int]:
    """The cache of one card at its low end, best value and high end, in bytes."""
    (memory,) = kvpipe.run([*words, "scheduler.max_model_len=1024"]).profile.ranks
    cache = memory.available_kv
    return cache.low_bytes, cache.num_bytes, cache.high_bytes


def lengths_by_hand(words: list[str]) -> dict[str, tuple[str, int, int]]:
    """Verdict -> (word, exit code, tokens): Llama's blocks of 2 MiB, one of them the null block."""
    low, best, high = ((end // 2**21 - 1) * 16 for end in ends_by_hand(words))
    return {
        "at the low end": ("fits", 0, low),
        "beyond the low end": ("may_not_fit", 0, low + 1),
        "at the best value": ("may_not_fit", 0, best),
        "beyond the best value": ("may_not_fit", 1, best + 1),
        "at the high end": ("may_not_fit", 1, high),
        "beyond the high end": ("does_not_fit", 1, high + 1),
    }


L4 = ["llama", "device=l4", "backend=meta"]
REPLAYED = ["trace=synthetic", "trace.max_requests=2", "trace.spread=0"]
WHERE = [
    pytest.param("at the low end", marks=pytest.mark.full),
    pytest.param("beyond the low end", marks=pytest.mark.full),
    pytest.param("at the best value", marks=pytest.mark.full),
    "beyond the best value",
    pytest.param("at the high end", marks=pytest.mark.full),
    pytest.param("beyond the high end", marks=pytest.mark.full),
]


@pytest.mark.parametrize("where", WHERE)
def test_every_command_gives_the_verdict_of_the_range(where: str, capsys) -> None:
    status, code, length = lengths_by_hand(L4)[where]
    asked = [*L4, f"scheduler.max_model_len={length}"]
    seen = {name: told(capsys, name, *asked) for name in ("run", "find")}
    compared = told(capsys, "compare", *asked, "engines=[kvpipe]")
    assert {name: (c, d["status"]) for name, (c, d) in seen.items()} == {
        "run": (code, status),
        "find": (code, status),
    }
    assert (compared[0], compared[1]["engines"][0]["verdict"]) == (code, status)
    assert on_the_page(asked).status == status
    if where.endswith("best value") and code:
        with pytest.raises(kvpipe.DoesNotFit) as caught:
            kvpipe.run(asked)
        assert caught.value.status == status
    replayed = told(capsys, "replay", *asked, *REPLAYED)
    assert replayed[0] == code
    assert replayed[1].get("status") in ((None, status) if code == 0 else (status,))


def on_the_page(asked: list[str]) -> Position:
    """A stop of `kvpipe page`."""
    words = words_to_overrides(["page", *asked])
    return Planner(raw=prepared_request(words).prepared.raw).position({})


@pytest.mark.parametrize("engine", ["sglang", pytest.param("llama_cpp", marks=pytest.mark.full)])
def test_a_page_has_both_ends_of_a_planned_engines_users(engine: str, capsys) -> None:
    asked = ["llama", "device=h100", "scheduler.max_model_len=8192", f"engine={engine}"]
    here = on_the_page(asked)
    assert here.low_users < here.high_users
    for users in {here.low_users, here.users, here.high_users}:
        for more in (0, 1):
            _, ran = told(capsys, "run", *asked, f"want.requests={users + more}")
            word = "fits" if users + more <= here.low_users else "may_not_fit"
            assert ran["status"] == (word if users + more <= here.high_users else "does_not_fit")


def test_users_whom_the_high_end_alone_holds_may_fit_and_are_not_served(
    capsys,
) -> None:
    asked = [*L4, "scheduler.max_model_len=2048"]
    _, best, high = (end // 2**21 - 1 for end in ends_by_hand(L4))
    held, most = best // 128, high // 128
    assert held < most
    for users, status in ((most, "may_not_fit"), (most + 1, "does_not_fit")):
        code, ran = told(capsys, "run", *asked, f"want.requests={users}")
        assert (code, ran["status"]) == (1, status)
        answer = kvpipe.run([*asked, f"want.requests={users}"]).answer
        word = status.upper().replace("_", " ")
        assert answer.verdict.text.startswith(f"{word}: only {held} of {users} users of 2,048")
        assert any("whose high end" in line for line in answer.complaints) == (users == most)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            "find want.requests=1",
            "MAY NOT FIT (not at the best value): 1 request of 24,000 tokens on l4",
            marks=pytest.mark.full,
        ),
        ("compare engines=[kvpipe]", "MAY NOT FIT (not at the best value): kvpipe may"),
        ("replay trace=synthetic trace.max_requests=2", ""),
        ("run engine=llama_cpp", "IT FITS: 1 of 24,000 tokens, 1 run, 5.55 GiB of cache (5.23 to"),
    ],
)
def test_the_verdict_is_the_last_line_of_every_command(words: str, said: str, capsys) -> None:
    command, *more = words.split()
    length = "8192" if command == "replay" else "24000"
    run([command, *L4, f"scheduler.max_model_len={length}", *more])
    told = capsys.readouterr().out.splitlines()[-1]
    said = said or "IT FITS: 2 requests replayed on meta-llama/Llama-3.1-8B on l4"
    assert told.startswith(said) and len(told) <= 80
