"""`kvpipe find`: each answer is the edge, checked by planning both sides of it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvpipe.answers.search import Search, blocks_for, read_want
from kvpipe.errors import ConfigError
from kvpipe.front.job import run_job
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Prepared, execute
from kvpipe.specs.edges import largest, smallest

LOAD = ["want.requests=64", "want.length=8192", "model=llama"]


def prepared(*overrides: str) -> Prepared:
    return prepared_request(["command=find", *LOAD, *overrides]).prepared


def search(*overrides: str) -> Search:
    made = prepared(*overrides)
    return Search(prepared=made, want=read_want(made.config.want, made))


def found(tmp_path: Path, *overrides: str) -> dict[str, dict[str, Any]]:
    out = io.StringIO()
    run_job(prepared("report=json", *overrides), lambda: tmp_path, out, None)
    document = json.loads(out.getvalue())
    assert json.loads((tmp_path / "find.json").read_text()) == document
    return {finding["question"]: finding for finding in document["findings"]}


@pytest.mark.parametrize("edge", [1, 2, 50, 99, 100])
def test_bisection_finds_every_edge(edge: int) -> None:
    assert smallest(1, 100, lambda n: n >= edge) == edge
    assert largest(1, 100, lambda n: n <= edge) == edge


def test_bisection_says_when_there_is_no_edge() -> None:
    assert smallest(1, 100, lambda n: False) is None
    assert largest(1, 100, lambda n: False) is None
    assert smallest(7, 100, lambda n: True) == 7
    assert largest(7, 100, lambda n: True) == 100


def test_the_cache_is_what_64_requests_hold_and_the_null_block(tmp_path: Path) -> None:
    """512 blocks of 2 MiB a request, all alike for full attention."""
    finding = found(tmp_path)["smallest cache on each rank"]
    assert finding["setting"] == f"cache.kv_cache_memory_bytes={(64 * 512 + 1) * 2 * 2**20}"


def test_that_cache_serves_and_one_block_less_does_not() -> None:
    one = (64 * 512 + 1) * 2 * 2**20
    for num_bytes, serves in ((one, True), (one - 1, False)):
        asked = search("device=h200", f"cache.kv_cache_memory_bytes={num_bytes}")
        assert (asked.missing({}) == "") is serves


@pytest.mark.parametrize("device", ["h200", "b200"])
def test_the_smallest_utilization_is_an_edge(device: str) -> None:
    asked = search(f"device={device}")
    key = "cache.gpu_memory_utilization"
    least = float(asked.utilization().answer)
    assert asked.missing({key: least}) == ""
    assert asked.missing({key: round(least - 0.01, 2)}).startswith("memory: ")


def test_where_one_card_is_too_small_two_are_named_and_why(tmp_path: Path) -> None:
    findings = found(tmp_path, "device=h100_80gb")
    assert findings["smallest utilization"]["answer"] == ""
    assert findings["smallest tensor parallel size"]["answer"] == "2"
    assert findings["smallest tensor parallel size"]["limit"].startswith("TP 1: memory: 32,768 ")
    assert "does not fit" in findings["as asked"]["answer"]
    limits = re.findall(r"[\d,]+ blocks needed, [\d,]+ can", str(findings))
    for limit in limits:  # 2 MiB a block, on one card and on each of two
        need, have = (int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", limit))
        assert f"({(need - have) / 512:.2f} GiB more" in str(findings) or need - have < 512


def test_the_largest_max_num_seqs_and_length_are_edges() -> None:
    asked = search("device=h100_80gb")
    seqs = int(asked.largest_max_num_seqs().answer)
    key = "scheduler.max_num_seqs"
    assert asked.missing({key: seqs}, requests=seqs) == ""
    assert asked.missing({key: seqs + 1}, requests=seqs + 1)
    length = int(asked.longest().answer.split()[0].replace(",", ""))
    assert asked.missing({}, length=length) == ""
    assert asked.missing({}, length=length + 1)


def test_the_smallest_device_is_the_first_that_serves() -> None:
    asked = search()
    finding = asked.device()
    assert finding.answer == "h100_nvl"
    assert finding.limit.startswith("h100_80gb: memory: ")


def test_what_a_found_setting_promises_holds_in_a_run() -> None:
    result = execute(
        prepared_request(
            ["model=llama", "device=h100_nvl", "profiling=estimate", "scheduler.max_model_len=8192"]
        ).prepared
    )
    assert result.plan.capacity is not None
    assert result.plan.capacity.requests_steady >= 64
    assert blocks_for(result.plan, 64) <= result.plan.capacity.usable_blocks


def test_windows_need_room_for_the_prompt_that_is_read() -> None:
    """Gemma-3: all requests in steady state, and one prompt's tokens in flight beside them."""
    made = prepared_request(
        [
            "model=gemma3_27b",
            "device=h200",
            "scheduler.max_model_len=32768",
            "cache.kv_cache_memory_bytes=60GiB",
        ]
    ).prepared
    plan = execute(made).plan
    assert plan.capacity is not None
    steady = sum(demand.steady_blocks for demand in plan.capacity.demands)
    peak = sum(demand.peak_blocks for demand in plan.capacity.demands)
    assert peak > steady
    assert blocks_for(plan, 3) == 3 * steady + peak - steady


def test_nothing_that_serves_is_exit_code_one(tmp_path: Path) -> None:
    out = io.StringIO()
    asked = prepared("device=t4", "want.requests=100000", "report=text")
    assert run_job(asked, lambda: tmp_path, out, None).exit_code == 1
    assert "find: 100,000 requests of 8,192 tokens" in out.getvalue()


@pytest.mark.parametrize(
    ("override", "match"),
    [
        ("want.requests=0", r"want\.requests: expected .*at least 1, got 0"),
        ("want.requests=many", r"want\.requests: expected a whole number"),
        ("want.length=200000", r"want\.length: expected 1 to the model's context of 131,072"),
        ("want.requests=9" + 30 * "0", r"want\.requests: expected less than 2147483648, got 90+$"),
        ("want.length=0", r"want\.length: expected at least 1 or 'auto', got 0"),
        (
            "+want.latency=1",
            r"want\.latency: expected a known key, got 'latency'; valid: batches, caches, device,",
        ),
        ("+want.request=1", r"want\.request: expected a known key, .* did you mean 'requests'"),
    ],
)
def test_a_wrong_wish_is_refused_by_its_key(override: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        made = prepared_request(["command=find", "model=llama", override]).prepared
        read_want(made.config.want, made)


@pytest.mark.parametrize("raw", [{}, None])
def test_no_wish_at_all_says_what_to_set(raw: Any) -> None:
    with pytest.raises(ConfigError, match=r"want: .* got nothing; set want\.requests=64 "):
        read_want(raw, prepared())


def test_a_wish_that_is_no_section_is_one_problem() -> None:
    with pytest.raises(ConfigError, match="want: expected a section of settings, got 5") as caught:
        read_want(5, prepared())
    assert len(caught.value.problems) == 1


def test_every_wrong_key_of_a_wish_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_want({"requests": 0, "z": 1}, prepared())
    keys = ["requests", "length", "device", "prices", "token_ms", "z"]
    assert [p.key for p in caught.value.problems] == [f"want.{key}" for key in keys]


def test_one_request_of_one_token_is_not_written_as_many(tmp_path: Path) -> None:
    out = io.StringIO()
    asked = prepared("device=h200", "want.requests=1", "want.length=1", "report=text")
    run_job(asked, lambda: tmp_path, out, None)
    text = " ".join(out.getvalue().split())
    assert "find: 1 request of 1 token," in text and "longest length for 1 request " in text
    assert re.search(r"\b1 (requests|tokens|blocks)\b", text) is None


@pytest.mark.parametrize(("requests", "code"), [(48, 0), (64, 1), (1000, 1)])
def test_a_load_that_is_not_served_as_asked_is_exit_code_one(requests, code, tmp_path) -> None:
    asked = prepared("device=h100_80gb", f"want.requests={requests}", "report=none")
    assert run_job(asked, lambda: tmp_path, io.StringIO(), None).exit_code == code


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("want.prices={nope:2}", "want.prices: expected names of device"),
        ("want.device=[]", "want.device: expected a list with an entry"),
    ],
)
def test_a_wrong_choice_of_cards_is_said_by_its_own_key(wish, said, capsys):
    words = ["find", "model=llama", wish]
    if not wish.startswith("want.device"):
        words.append("want.device=[h100]")
    assert run(words) == 2
    assert said in capsys.readouterr().err
