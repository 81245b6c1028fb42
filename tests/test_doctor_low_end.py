"""`kvpipe doctor` of a line that starts by the best value of an estimate, and may not at an end."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_doctor import doctor, pasted, prepared_case, text_of

from kvpipe.commands.base import Command
from kvpipe.engines.pasted import read_pasted
from kvpipe.errors import DoesNotFit
from kvpipe.front.flags import flags_to_words
from kvpipe.front.words import words_to_overrides

LINE = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 2 --max-model-len 32768"
CARD = "device=h100_80gb"


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        # 2,049 blocks of 2.5 MiB are 5.00 GiB; the low end has 612.4 MiB.
        ("--max-num-seqs 16", "at worst 4.40 GiB are missing"),
        # 2,049 of 1.25 MiB are 2.50 GiB; the low end has 49.92 MiB.
        ("--max-num-seqs 64 --kv-cache-dtype fp8", "at worst 2.45 GiB are missing"),
    ],
)
def test_a_line_that_may_not_start_is_told_with_what_is_missing_and_what_surely_starts(
    flags: str, missing: str, tmp_path: Path
) -> None:
    answer = doctor(pasted(tmp_path, f"{LINE} {flags}"), CARD)
    text = text_of(answer)
    assert (answer.status, answer.exit_code) == ("may_not_fit", 0)
    assert "! MAY NOT FIT: 32,768 tokens" in text and missing in text
    assert "nothing is wrong" not in text and "may fit" not in text
    changed = doctor(pasted(tmp_path, answer.fields["paste"]), CARD)
    assert changed.status == "fits" and "nothing is wrong" in text_of(changed)
    assert "--max-model-len 32768" in answer.fields["paste"]


@pytest.mark.full
def test_doctor_and_run_have_one_status_for_a_line(tmp_path: Path) -> None:
    for more in ("--max-num-seqs 16", "", "--max-num-seqs 16 --quantization fp8"):
        line = f"{LINE} {more}"
        found = read_pasted(line)
        assert found is not None
        answer = doctor(pasted(tmp_path, line), CARD)
        words = ["run", "model=llama_3_1_70b", CARD, "engine=vllm", "backend=meta"]
        said = [f"{key}={value}" for key, value in found.settings.items()]
        asked = prepared_case(words_to_overrides(flags_to_words([*words, *said])))
        try:
            ran = asked.config.plugins["command"].make(Command).run(asked, None)
        except DoesNotFit as error:  # says its status, too
            ran = error
        assert (answer.status, answer.exit_code) == (ran.status, ran.exit_code), more


def test_what_the_high_end_alone_would_hold_may_not_fit_and_stops(tmp_path: Path) -> None:
    line = LINE.replace("32768", "16384")
    answer = doctor(pasted(tmp_path, line), CARD)
    assert (answer.status, answer.exit_code) == ("may_not_fit", 1)
    assert "may not fit: the memory is an estimate, whose best value is refused" in text_of(answer)
