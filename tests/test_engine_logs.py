"""Public engine logs against what kvpipe gives for the same memory; a case is a record of one log.

The expected outcome of each record stands here, so that a changed rule shows as a changed row.
"""

from __future__ import annotations

from collections import Counter

import pytest
from engine_cases import under, verdict
from engine_records import cases, readings

from kvpipe.text.figures import GIB

REPRODUCED = [
    "L01",
    "X03",
    "X07",
    "L05",
    "L06",
    "L09",
    "L10",
    "L13",
    "L20",
    "L22",
    "L23",
    "L24",
    "L25",
    "L28",
    "L30",
    "L58",
    "X05",
    "X06",
    "X08",
    "X10",
    "X14",
    "X15",
]
AMBIGUOUS = [
    "L29",
    "L35",
    "L43",
    "L48",
    "L53",
    "L54",
    "X18",
    "X19",
    "X21",
    "X22",
    "X24",
    "X25",
    "X27",
    "X28",
]
IDENTITY = ["L14", "L15", "L17", "L18", "L19", "L26", "L47", "L57", "L60", "L61", "X16"]
SIZES = ["L04", "L38", "L39", "L42", "X30", "X31", "X32", "X33", "X34"]
RANKS = ["L03", "X02"]
UNEXPLAINED = ["L07", "X20"]
EXPECTED = {
    **dict.fromkeys(REPRODUCED, "reproduced"),
    **dict.fromkeys(AMBIGUOUS, "ambiguous"),
    **dict.fromkeys(IDENTITY, "identity"),
    **dict.fromkeys(SIZES, "sizes"),
    **dict.fromkeys(RANKS, "ranks"),
    **dict.fromkeys(UNEXPLAINED, "unexplained"),
}


@pytest.mark.parametrize("name", cases())
def test_each_log_has_the_outcome_that_is_published(name: str) -> None:
    assert verdict(cases()[name]).outcome == EXPECTED.get(name, "nothing to check")


@pytest.mark.parametrize(("name", "blocks"), [("L01", 1952), ("X03", 64822), ("X07", 1312)])
def test_logs_that_go_from_memory_to_tokens_by_themselves_come_out(name: str, blocks: int) -> None:
    case = cases()[name]
    for reading in readings(case):
        result = under(case, reading)
        assert result.agrees, result.terms
        assert result.implied is not None
        printed = case["available_kv_gib"]
        width = result.facts["bytes_per_block"]
        assert blocks in range(
            int((printed - 0.005) * GIB) // width, int((printed + 0.005) * GIB) // width + 1
        )
        assert result.implied.low // width == blocks


def test_two_ranks_lines_are_recognised_and_the_third_ranks_memory_is_named() -> None:
    case = cases()["X02"]
    (result, *_) = [under(case, reading) for reading in readings(case)]
    assert not result.agrees
    assert result.implied is not None
    assert result.implied.num_bytes / GIB == pytest.approx(10.677, abs=0.001)


@pytest.mark.parametrize("name", ["L09", "L10", "L20", "L22", "X10", "L01"])
def test_swapped_blocks_check_the_bytes_of_a_block(name: str) -> None:
    case = cases()[name]
    (result, *_) = [under(case, reading) for reading in readings(case)]
    assert [t.agrees for t in result.terms if t.name == "swap blocks"] == [True]


@pytest.mark.parametrize("name", ["L01", "X03", "X07", "L05", "X14", "L23", "L35", "X18", "X28"])
def test_a_percent_more_memory_is_noticed(name: str) -> None:
    """The checks can fail: no reading still gives the printed tokens from 1% more bytes."""
    case = dict(cases()[name])
    exact = (case["extra"] or {}).get("available_bytes", 0) / GIB
    case["available_kv_gib"] = (case["available_kv_gib"] or exact) * 1.01
    case["extra"] = {k: v for k, v in (case["extra"] or {}).items() if k != "available_bytes"}
    assert verdict(case).outcome in ("unexplained", "ranks")


def test_records_that_can_prove_something_are_nearly_all_reproduced() -> None:
    counts = Counter(
        EXPECTED.get(name, "nothing to check")
        for name, case in cases().items()
        if case["strength"] in ("independent", "fitted")
    )
    assert counts == {"reproduced": 18, "ambiguous": 11, "sizes": 9, "unexplained": 2, "ranks": 1}
