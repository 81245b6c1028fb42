"""Every section that is composed is checked, whichever command is asked, and all at once."""

from __future__ import annotations

import re

import pytest

from kvpipe.front.main import run

STOPS = ("command.lengths=[0,-5,abc]", "command.cards=[3]", "command.caches=[int7]")
WANTED = ("want.percentile=95", "want.device=[h1000]", "want.token_ms=-1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (
            ["page", *STOPS, "cache.block_size=-1"],
            "cache.block_size command.caches.0 command.cards.0 command.lengths.0 "
            "command.lengths.1 command.lengths.2",
        ),
        (
            ["page", "command.folder=/nonexist", *STOPS[1:]],
            "command.caches.0 command.folder",  # each job has cards of its own
        ),
        (["page", "llama", "--on", "h100", "command.caches=[auto,q8_0]"], "command.caches.1"),
        (
            ["serve-page", "command.port=99999", "command.folder=/nonexist"],
            "command.folder command.port",
        ),
        (
            ["replay", "llama", "trace=synthetic", "trace.efficiency=7", *WANTED],
            "trace.efficiency want.device want.percentile want.token_ms",
        ),
        (
            ["run", "trace=synthetic", "trace.efficiency=7", *WANTED, "tp=3"],
            "parallel.tensor_parallel_size trace.efficiency want.device want.percentile "
            "want.token_ms",
        ),
        (["find", "trace=synthetic", "trace.efficiency=7"], "trace trace.efficiency"),
        (["run", "want.requests=0"], "want.requests"),
    ],
)
def test_all_that_is_wrong_is_told_at_once(words: list[str], keys: str, capsys) -> None:
    assert run(words) == 2
    told = re.findall(r"^kvpipe: ([a-z_.0-9]+): expected", capsys.readouterr().err, re.MULTILINE)
    assert sorted(told) == keys.split()
