"""Advice comes in the words of the user's own line, and works when it is put into that line."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator

import pytest

from kvpipe.front.main import run

FLAGS = ("--on", "--context", "--kv", "--weights", "--users")
MODELS = ("llama", "llama-3.1-70b", "gemma-3-27b", "gpt-oss-20b", "qwen3-30b-a3b", "mistral-7b")
CARDS = ("h100", "l4", "4090", "a100-40", "h200")
# One setting of each in the ways that a line may say it.
WAYS = {
    "context": ("--context {}", "--context={}", "scheduler.max_model_len={}"),
    "kv": ("--kv {}", "cache.cache_dtype={}", ""),
    "users": ("--users {}", "want.requests={}", ""),
}


def a_line(seed: int) -> list[str]:
    """A request that may well be too large for its cards."""
    pick = random.Random(seed)
    count, card = pick.choice(("", "1x", "2x", "8x")), pick.choice(CARDS)
    ranks = int(count[:-1] or 1)
    device = pick.choice((f"--on {count}{card}", f"--on={count}{card}", f"device={count}{card}"))
    words = [pick.choice(MODELS), device]
    words.append(pick.choice(WAYS["context"]).format(pick.choice(("16k", "32k", "128k"))))
    words.append(pick.choice(WAYS["kv"]).format(pick.choice(("auto", "fp8"))))
    words.append(pick.choice(WAYS["users"]).format(pick.choice((1, 16, 300))))
    if count and pick.random() < 0.3:
        words.append(pick.choice((f"tp={ranks}", f"parallel.tensor_parallel_size={ranks}")))
    elif not ranks % 2 and pick.random() < 0.4:
        words.append(pick.choice(("pp=2", "parallel.pipeline_parallel_size=2")))
    words.append(pick.choice(("", "", "engine=vllm", "engine=sglang", "engine=llama_cpp")))
    return shlex.split(" ".join(words))


def advised(line: list[str], capsys) -> list[str]:
    """Every change that its refusal names, as it is written there; [] where it is none."""
    if run([*line, "backend=meta"]) != 1:
        capsys.readouterr()
        return []
    told = capsys.readouterr().err
    changes = []
    for part in re.split(
        r"[Pp]lanned, and (?:may fit, since the memory is an estimate|fits): ", told
    )[1:]:
        changes += re.findall(r"(?:^|\); )(.+?) \((?=.)", part)
    return changes


def put_into(line: list[str], change: str) -> list[str]:
    """A word of the change takes the place of the line's word of that name, or comes last."""
    kept, words = list(line), shlex.split(change)
    while words:
        name, equals, _ = words[0].partition("=")
        taken = 1 if equals else 2
        place = next((i for i, word in enumerate(kept) if word.partition("=")[0] == name), None)
        if place is None:
            kept += words[:taken]
        else:
            end = place + (2 if kept[place] in FLAGS else 1)
            kept[place:end] = words[:taken]
        words = words[taken:]
    return kept


def failing(seed: int, capsys) -> Iterator[str]:
    line = a_line(seed)
    for change in advised(line, capsys):
        code = run([*put_into(line, change), "backend=meta"])
        if code != 0:
            yield f"{shlex.join(line)} + {change}: {capsys.readouterr().err}"
    capsys.readouterr()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def taken(line: str, change: str, capsys) -> bool:
    return (
        change in advised(line.split(), capsys)
        and run([*put_into(line.split(), change), "backend=meta"]) == 0
    )


def test_a_count_of_cards_is_raised_where_it_was_said(capsys) -> None:
    assert taken("llama --on 1xl4 --context 64k", "--on 2xl4", capsys)


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("llama-3.1-405b --on 8xh100", "--on 16xh100"),
        ("llama-3.1-405b device=8xh100", "device=16xh100"),
        ("llama-3.1-405b --on 8xh100 tp=8", "--on 16xh100 tp=16"),
        (
            "llama-3.1-405b --on h100 parallel.tensor_parallel_size=8",
            "parallel.tensor_parallel_size=16",
        ),
        ("llama-3.1-405b --on h100 tp=4 pp=2", "tp=8"),
        ("llama --on l4 --context 64k", "--context 15536"),
        ("llama --on l4 --context 64k", "--on 2xl4"),
        ("llama device=l4 scheduler.max_model_len=64k", "scheduler.max_model_len=15536"),
        ("llama device=l4 --context 64k", "parallel.tensor_parallel_size=2"),
    ],
)  # fmt: skip
def test_advice_is_in_the_words_of_the_line_and_fits_into_it(line, change, capsys) -> None:
    assert taken(line, change, capsys)


@pytest.mark.parametrize("batch", [pytest.param(n, marks=pytest.mark.full) for n in range(10)])
def test_advice_that_is_put_into_the_line_as_it_stands_is_taken(batch: int, capsys) -> None:
    assert [line for n in range(20) for line in failing(20 * batch + n, capsys)] == []


def test_a_length_that_is_advised_says_for_which_max_num_seqs_it_is_the_longest(capsys) -> None:
    said = ["llama-3.1-70b", "--on", "2xh100", "--context", "32k", "report=none"]
    assert run([*said, "scheduler.max_num_seqs=128"]) == 1
    told = capsys.readouterr().err
    (length,) = re.findall(r"--context (\d+) \(the longest that runs with max_num_seqs=128\)", told)
    said[4] = length
    assert run([*said, "scheduler.max_num_seqs=128"]) == 0
    capsys.readouterr()
    said[4] = f"{int(length) + 16}"
    assert run([*said, "scheduler.max_num_seqs=128"]) == 1
