"""What may fit is told in the order of its room; what is slow is told though nobody asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvpipe.answers.waits import LONG_S, Waits, slow_and_unasked
from kvpipe.front.main import run
from kvpipe.simulation.latencies import Percentiles


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_may_fit_is_told_by_its_room_and_a_cache_of_8_bits_with_it(capsys) -> None:
    assert run(["qwen3-32b", "--on", "h100", "--context", "40k"]) == 1
    may = capsys.readouterr().err.partition("may fit, since")[2]
    places = [may.find(way) for way in ("cache.cache_dtype=fp8", "utilization=0.94", "--context")]
    assert places == sorted(places) and places[0] > 0


def test_a_checkpoint_is_not_of_so_many_tokens(capsys) -> None:
    assert run(["phi-4", "--on", "t4"]) == 1
    assert "checkpoint of 4 bits; requests of" in capsys.readouterr().err


def test_a_change_that_does_not_make_it_fit_does_not_read_so(capsys) -> None:
    words = ["llama", "--on", "h100", "--context", "8k", "engine=vllm"]
    assert run([*words, "--users", "90"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "change scheduler.max_num_seqs=256 (of this warning alone; " in told
    assert run(words) == 0
    assert "(of this warning alone" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("median", "asked", "is_told"), [(18.7, None, True), (18.7, 20.0, False), (0.2, None, False)]
)
def test_first_tokens_that_come_late_are_told_where_nobody_asked(median, asked, is_told) -> None:
    late = Percentiles(count=9, p50=median, p90=2 * median, p99=3 * median)
    result: Any = SimpleNamespace(first_token=late)
    told = slow_and_unasked(result, Waits(percentile=99, first_token_s=asked))
    assert bool(told) == is_told == (median > LONG_S and asked is None)
    assert not is_told or "first token 18.7 s after arrival at the median" in told
