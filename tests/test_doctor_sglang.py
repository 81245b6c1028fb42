"""`kvpipe doctor` of a line that starts SGLang: planned with the settings its flags stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_doctor import doctor, prepared_case, text_of

from kvpipe.commands.base import Command
from kvpipe.engines.sglang_pasted import read_sglang

LINE = (
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 2 "
    "--context-length 8192 --mem-fraction-static 0.8 --kv-cache-dtype fp8_e4m3 "
    "--max-running-requests 32 --port 80"
)
SETTINGS = {
    "parallel.tensor_parallel_size": 2,
    "scheduler.max_model_len": 8192,
    "engine.mem_fraction_static": 0.8,
    "cache.cache_dtype": "fp8",
    "scheduler.max_num_seqs": 32,
}
CARD = "device=h100_80gb"


@pytest.mark.parametrize("before", ["", "$ CUDA_VISIBLE_DEVICES=0,1 ", "docker run --gpus all x "])
def test_flags_of_sglang_are_read_in_every_form(before: str) -> None:
    for line in (LINE, LINE.replace(" --", " \\\n  --"), LINE.replace("--tp ", "--tp-size=")):
        found = read_sglang(f"{before}{line} && echo done")
        assert found is not None and found.settings == SETTINGS
        assert found.model == "meta-llama/Llama-3.1-8B-Instruct" and found.unknown == ("--port",)


@pytest.mark.parametrize("text", ["", "pip install sglang", "vllm serve org/m --tp 2"])
def test_other_text_is_no_line_of_sglang(text: str) -> None:
    assert read_sglang(text) is None


def test_a_line_of_sglang_is_planned_as_run_plans_it() -> None:
    answer = doctor(Path(LINE), CARD)
    text = text_of(answer)
    said = [f"{key}={value}" for key, value in SETTINGS.items()]
    asked = prepared_case(["model=llama", CARD, "engine=sglang", "backend=meta", *said])
    ran = asked.config.plugins["command"].make(Command).run(asked, None)
    assert (answer.status, answer.exit_code) == (ran.status, ran.exit_code) == ("fits", 0)
    tokens = read_sglang(answer.fields["paste"])
    assert tokens is not None and tokens.settings.items() >= SETTINGS.items()
    assert tokens.model == "meta-llama/Llama-3.1-8B-Instruct"
    start = json.dumps(ran.document, default=str)
    pool = answer.fields["paste"].split("--max-total-tokens ")[1].split()[0]
    assert f"--max-total-tokens {pool}" in start
    assert "planned with engine=sglang; not read, and left out: --port" in text
    assert "vllm" not in text.lower()


@pytest.mark.parametrize(("users", "code"), [(3, 0), (4, 1)])
def test_tokens_that_a_line_allows_bound_its_users(users: int, code: int) -> None:
    line = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct "
    line += "--context-length 32768 --max-total-tokens 100000"
    answer = doctor(Path(line), CARD, f"want.requests={users}")
    assert answer.exit_code == code and "3 requests of 32,768 tokens" in text_of(answer)
    assert code or "--max-total-tokens 100000" in answer.fields["paste"]


def test_a_line_of_sglang_that_does_not_fit_is_refused_with_planned_ways() -> None:
    answer = doctor(Path(LINE.replace("8B", "70B").replace("--tp 2", "--tp 1")), CARD)
    assert answer.exit_code == 1 and answer.status == "does_not_fit"
    assert "planned, and fits" in text_of(answer) and not answer.fields["paste"]
