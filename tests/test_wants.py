"""Every key of `want` is read by a command, or refused by it by name: none is passed over."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from kvpipe.commands.base import Command
from kvpipe.errors import ConfigError
from kvpipe.front.prepared import checked, prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.plugins import COMMANDS
from kvpipe.request.confdir import shipped_option
from kvpipe.request.want import Want

VALUES: dict[str, Any] = {
    "requests": 4,
    "length": 2048,
    "device": ["h100_80gb"],
    "prices": {"h100_80gb": 2.5},
    "caches": ["auto", "fp8"],
    "batches": [2048],
    "seqs": [256],
    "token_ms": 50,
    "first_token_ms": 500,
    "wait_ms": 500,
    "percentile": 90,
    "write": "compose",
    "image": "some/image",
}
WITH = {
    "find": [],
    "page": [],
    "replay": ["trace=synthetic"],
    "explain": ["block"],
    "doctor": ["vllm serve meta-llama/Llama-3.1-8B"],
    "fit_speed": ["log.txt"],
}
OF_CARDS = {"prices", "caches", "batches", "seqs", "token_ms", "write", "image"}
OF_TRACES = {"token_ms", "first_token_ms", "wait_ms", "percentile"}


@cache
def composed(command: str) -> dict[str, Any]:
    words = [command, *WITH.get(command, ()), "model=llama", "device=h100_80gb"]
    return dict(prepared_request(words_to_overrides(words)).prepared.raw)


def refused_keys(command: str, trace: str = "", **want: Any) -> set[str]:
    """Keys of `want` that the request is refused for."""
    raw = composed(command)
    if trace:
        raw = {**raw, "trace": shipped_option("trace", trace)}
    try:
        checked({**raw, "want": {**raw["want"], **want}}, (), (), lambda: None)
    except ConfigError as error:
        return {p.key.partition(".")[2] for p in error.problems if p.key.startswith("want.")}
    return set()


def test_the_values_are_of_every_key() -> None:
    assert set(VALUES) == set(Want.model_fields)


QUICK = ("run", "replay")


@pytest.mark.parametrize(
    "command",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in COMMANDS.names()],
)
def test_a_key_is_read_or_refused_by_name(command: str) -> None:
    made: type[Command] = COMMANDS.get(command)
    for key, value in VALUES.items():
        found = refused_keys(command, **{key: value})
        if key not in made.wants:
            assert found == {key}, (command, key)
    assert refused_keys(command) == set()
    if not set(VALUES) & {*made.wants} - {"requests"}:  # all that nobody reads, at once
        assert refused_keys(command, **VALUES) == set(VALUES) - set(made.wants)


def test_a_search_without_cards_or_without_a_trace_refuses_what_is_about_them() -> None:
    for key in set(VALUES) - {"device", "requests", "length"}:
        assert refused_keys("find", **{key: VALUES[key]}) == {key}
    for key in OF_CARDS - {"image"}:
        assert not refused_keys("find", device=["h100_80gb"], **{key: VALUES[key]})
    assert refused_keys("page", length=2048) == {"length"}


def test_a_trace_says_how_many_come_and_a_percentile_is_of_times() -> None:
    cards, traced = {"device": ["h100_80gb"]}, "synthetic"
    for key in OF_TRACES - {"percentile"}:
        assert not refused_keys("find", traced, **cards, **{key: 50})
    assert refused_keys("find", traced, **cards, requests=4) == {"requests"}
    assert refused_keys("find", traced, **cards, percentile=90) == {"percentile"}
    assert refused_keys("replay", percentile=90) == {"percentile"}
    assert not refused_keys("replay", percentile=90, wait_ms=50)


def test_what_says_what_nobody_says_is_no_wish() -> None:
    assert not refused_keys("run", requests=1, length="auto", percentile=99, token_ms=None)


def test_a_wrong_number_of_users_is_told_with_an_example(capsys) -> None:
    from kvpipe.front.main import run

    assert run(["llama", "--on", "l4", "--users", "0"]) == 2
    assert capsys.readouterr().err.endswith("got 0; for example --users 16\n")
