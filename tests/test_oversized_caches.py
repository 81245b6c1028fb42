"""A cache that is set by hand and that its card has not: one verdict, and one answer that fits."""

from __future__ import annotations

import json

import pytest
from test_doctor import doctor, pasted, text_of

from kvpipe.front.main import run

ASKED = ["model=llama", "scheduler.max_model_len=8192", "backend=meta", "report=json"]
SIZE = "cache.kv_cache_memory_bytes"
MEANT = "cache.may_exceed_device=true"
FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("card", "gib", "more"),
    [
        ("h100_80gb", 500, [MEANT, "want.requests=10"]),
        pytest.param("h100_80gb", 100, [MEANT], marks=FULL),
        pytest.param("h100_80gb", 500, ["want.requests=10"], marks=FULL),
        pytest.param("l4", 20, [], marks=FULL),
    ],
)
def test_a_cache_that_its_card_has_at_no_end_does_not_fit_and_is_left_to_the_card(
    card: str, gib: int, more: list[str], capsys
) -> None:
    """Followed, the one change that is told surely fits, and the users are served."""
    words = [*ASKED, f"device={card}", *more]
    assert run([*words, f"{SIZE}={gib}GiB"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["status"] == "does_not_fit"
    assert "may not fit" not in told.err.lower() and "no single change" not in told.err
    assert f"{SIZE}=null (as much as its share of the card leaves)" in told.err
    assert run([*words, f"{SIZE}=null"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "fits"


def test_a_cache_that_the_card_has_at_the_high_end_alone_may_not_fit(capsys) -> None:
    """0.7 GiB beyond the card by the best value, within it where all beside it is small."""
    assert run([*ASKED, "device=h100_80gb", f"{SIZE}=63GiB"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["status"] == "may_not_fit"
    assert "whose high end, 63.00 GiB of cache, would hold it" in told.err


@FULL
def test_the_screen_and_the_refusal_tell_one_size(capsys) -> None:
    words = [word for word in ASKED if word != "report=json"]
    assert run([*words, "device=l4", f"{SIZE}=20GiB"]) == 1
    told = capsys.readouterr()
    assert f"{SIZE}=null" in told.out and f"{SIZE}=null" in told.err
    assert f"change   {SIZE}=5" not in told.out and f"{SIZE}=1" not in told.err


@FULL
def test_doctor_refuses_a_cache_by_hand_that_the_card_has_not(tmp_path) -> None:
    """57 GiB beside 61 GiB of weights; it was told to fit, with a warning. What is told instead
    surely fits."""
    line = "vllm serve Qwen/Qwen3-32B --max-model-len 8192 --kv-cache-dtype fp8 "
    line += "--kv-cache-memory-bytes 61310238720"
    answer = doctor(pasted(tmp_path, line), "device=h100_80gb")
    assert (answer.status, answer.exit_code) == ("does_not_fit", 1)
    assert "45.98 GiB more than h100_80gb has" in text_of(answer)
    followed = doctor(pasted(tmp_path, answer.fields["paste"]), "device=h100_80gb")
    assert followed.status == "fits"
