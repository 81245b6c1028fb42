"""A long answer says what it is at: on a terminal, in one line of which nothing is left."""

from __future__ import annotations

import io
import re

import pytest

from kvpipe.front.main import run
from kvpipe.text.meanwhile import meanwhile


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def left_on(written: str) -> str:
    """What stands in a line after all was written into it."""
    line = ""
    for text in written.split("\r"):
        line = text + line[len(text) :]
    return line.rstrip()


def test_one_line_is_written_over_and_nothing_is_left_of_it(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    with pytest.raises(ValueError), meanwhile(screen) as tell:  # a refusal begins a clean line
        tell("a" * 100)
        assert left_on(screen.getvalue()) == "a" * 39
        tell("short \x1b[2J")
        assert left_on(screen.getvalue()) == "short ?[2J"
        raise ValueError
    assert left_on(screen.getvalue()) == "" and "\n" not in screen.getvalue()


def test_a_pipe_is_told_nothing() -> None:
    pipe = io.StringIO()
    with meanwhile(pipe) as tell:
        tell("candidate 1")
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(
    "asked",
    [
        ["want.requests=4"],
        ["trace=synthetic", "trace.max_requests=20", "want.first_token_ms=3000"],
    ],
)
def test_find_says_each_candidate_and_each_replay(asked, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    words = ["find", "llama", "want.device=[l40s,l4]", *asked]
    assert run(words) == 0
    told = [text.strip() for text in screen.getvalue().split("\r") if text.strip()]
    candidates = [text for text in told if "replica" not in text]
    assert [int(text.split()[1]) for text in candidates] == list(range(1, 17))
    if replays := re.search(r"(\d+)\s+replays", capsys.readouterr().out):
        assert len(told) - len(candidates) == int(replays[1])
    else:
        assert len(told) == 16


def test_replay_says_how_many_requests_are_finished(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    words = ["replay", "llama", "device=h100", "trace=synthetic", "trace.max_requests=150"]
    assert run([*words, "report=none"]) == 0
    told = [text.strip() for text in screen.getvalue().split("\r") if text.strip()]
    assert told == [f"{n} of 150 requests finished" for n in range(2, 151, 2)]
    assert left_on(screen.getvalue()) == ""
