"""What `kvpipe find` prints to set, put into the same line: `kvpipe run` takes each."""

from __future__ import annotations

import re
import shlex

import pytest

from kvpipe.front.main import run

LINES = (
    ("llama-3.1-70b", "--on", "2xh100", "--context", "32k", "--users", "16", "--kv", "fp8"),
    ("llama", "--on", "l4", "want.length=8192", "--users", "300"),
    ("llama", "device=h100_80gb", "want.length=8192", "want.requests=24"),
    ("gemma-3-27b", "--on", "2xl40s", "--context", "16k", "--users", "8"),
    ("llama", "--users", "4", "--context", "4096", "device=cpu", "backend=meta"),
)
QUESTIONS = "smallest|largest|longest|as asked"


def settings(printed: str) -> list[tuple[str, list[str]]]:
    """(question, words) of each printed setting."""
    block = printed.partition("one of these\n")[2].partition("what stands in the way")[0]
    rows = [" ".join(row.split()) for row in re.split(rf"\n(?=  (?:{QUESTIONS}))", block)]
    return [(row.split(": ")[0], shlex.split(row.split(": ")[1])) for row in rows if row]


def replaced(words: tuple[str, ...], new: list[str]) -> list[str]:
    """The line with the new words in the place of those that said the same."""
    said = {word.partition("=")[0] for word in new}
    kept, skip = [], False
    for word in words:
        if not skip and not (same := word.partition("=")[0] in {*said, "want.length"}):
            kept.append(word)
        skip = not skip and same and word.startswith("--")
    return [*kept, *new]


@pytest.mark.full
@pytest.mark.parametrize("words", LINES)
def test_each_setting_that_is_printed_serves_the_load_when_it_is_pasted(
    words, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(["find", *words])
    found = settings(capsys.readouterr().out)
    assert found
    for question, new in found:
        line = replaced(words, new)
        assert run(["run", *line]) == 0, (question, line)
        is_sure = "MAY NOT FIT" not in capsys.readouterr().out
        assert is_sure is ("may not fit" not in question), (question, line)
