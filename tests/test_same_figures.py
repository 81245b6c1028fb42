"""One request, one memory: every command plans it with the same figures and gives one verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import kvpipe
from kvpipe.answers.low_end import missing_at_low_end
from kvpipe.front.main import run

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
    for more, status in ((0, ("fits", "may_not_fit")), (1, ("does_not_fit",))):
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
