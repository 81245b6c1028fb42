"""`kvpipe page want.device=[...] trace=...`: the fleets that find replays, each with its map."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from page_requests import answered, command_line, places, position_at, told

from kvpipe.errors import DoesNotFit

LOAD = (
    *("model=llama", "engine=vllm", "backend=meta", "want.device=[l4,l40s]"),
    *("trace=synthetic", "trace.requests_per_second=12", "trace.max_requests=60"),
    *("trace.efficiency=0.5", "want.prices={l4: 0.5, l40s: 2.0}", "want.token_ms=90"),
)
STOPS = ("command.lengths=[4096]",)


@cache
def page() -> dict[str, Any]:
    return answered("page", *LOAD, *STOPS).document


@cache
def ranked() -> list[dict[str, Any]]:
    return list(answered("find", *LOAD).document["fleets"])


@pytest.mark.full
def test_the_fleets_of_a_trace_stand_as_find_ranks_them() -> None:
    subjects, found = page()["subjects"], ranked()
    assert page()["kind"] == "fleet" and len(subjects) == len(found) > 2
    assert any(fleet["replicas"] > 1 for fleet in found)
    for subject, fleet in zip(subjects, found, strict=True):
        assert subject["title"].startswith(f"{fleet['cards']} card")
        assert f": {fleet['replicas']} x TP {fleet['tp']}" in subject["title"]
        assert not any(word.startswith(("want.", "trace")) for word in subject["words"])


@pytest.mark.full
def test_what_each_replay_told_stands_in_its_line() -> None:
    lines = [note for note in page()["notes"] if note[:2] in {f"{n}." for n in range(1, 9)}]
    for line, fleet in zip(lines, ranked(), strict=True):
        times = fleet["replay"]["first_token"]
        told = ", ".join(f"{1000 * times[share]:,.1f}" for share in ("p50", "p90", "p99"))
        assert f"{fleet['cost_per_hour']:,.2f} an hour; first token {told} ms" in line
        assert (f"with a replica less: {fleet['one_less']}" in line) == bool(fleet["one_less"])
        running = [each["max_running"] for each in fleet["replay"]["replicas"]]
        most = max(running, default=fleet["replay"]["max_running"])
        assert f"at most {most:,} at once in a server" in line


@pytest.mark.full
def test_it_opens_with_the_requests_that_ran_at_once_or_as_many_as_are_held() -> None:
    """Of the longest: the trace's own are shorter, and more of them ran."""
    first = page()["subjects"][0]
    held = position_at(first, [axis["start"] for axis in first["axes"]])["users"]
    ran = ranked()[0]["replay"]
    most = max([each["max_running"] for each in ran["replicas"]], default=ran["max_running"])
    assert page()["users"] == min(most, held)


@pytest.mark.full
def test_each_position_of_a_traced_fleet_is_the_planners() -> None:
    document, asked = page(), 0
    for place in places(document, 60, seed=5):
        subject = document["subjects"][place.subject]
        position, at_stop = position_at(subject, place.stops), subject["axes"][-1]["stops"]
        if place.length != at_stop[place.stops[-1]]:
            continue  # between stops: tests/test_page.py
        if place.users <= max(1, position["low_users"]):
            expected = told(command_line(document, place))
            assert (position["status"], position["says"]) == (expected.status, expected.says)
            asked += 1
    assert asked > 5


@pytest.mark.full
def test_a_trace_that_no_fleet_serves_makes_no_page() -> None:
    with pytest.raises(DoesNotFit, match="none of these cards serves the load"):
        answered("page", *LOAD, *STOPS, "want.first_token_ms=0.001")
