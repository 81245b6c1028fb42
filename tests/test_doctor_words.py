"""Who pasted a line of vLLM's is answered in flags: none of kvpipe's own settings is named."""

from __future__ import annotations

import json
import re

import pytest
from test_doctor import doctor, text_of

from kvpipe.front.main import run

# What a setting of ours looks like, and what only our own plans have.
OURS = re.compile(r"\b(?:cache|scheduler|parallel|grouping|layout|engine|weights)\.\w+|\bscratch\b")
MODELS = ["google/gemma-3-27b-it", "openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct"]
FLAGS = [
    "",
    "--no-enable-prefix-caching",
    "--max-model-len 8192 --gpu-memory-utilization 1.0",
    "--kv-cache-dtype fp8 -tp 2 --no-enable-prefix-caching",
    "--disable-hybrid-kv-cache-manager",
    "--max-num-seqs 2000 --max-num-batched-tokens 16384 -pp 2",
    "--num-gpu-blocks-override 1000000",
    "-q awq --enforce-eager",
]


def said(line: str, device: str, capsys) -> list[str]:
    run(["doctor", line, f"device={device}", "report=json"])
    out = capsys.readouterr()
    answer = json.loads(out.out)
    troubles = [trouble["text"] for trouble in answer.get("troubles", ())]
    return [*troubles, *answer.get("memory", ()), *answer.get("capacity", ()), out.err]


@pytest.mark.full
@pytest.mark.parametrize("device", ["l4", "h200"])
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("model", MODELS)
def test_doctor_answers_in_the_words_of_the_line(
    model: str, flags: str, device: str, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = said(f"vllm serve {model} {flags}".strip(), device, capsys)
    assert told and [text for text in told if OURS.search(text)] == []


def test_one_such_line(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "vllm serve google/gemma-3-27b-it --no-enable-prefix-caching --max-model-len 8192"
    told = "\n".join(said(line, "h200", capsys))
    assert "--max-num-seqs" in told and not OURS.search(told)


def test_the_requests_that_are_advised_are_those_whose_activations_are_told(tmp_path) -> None:
    line = "vllm serve Qwen/Qwen2.5-72B-Instruct -tp 4 --max-model-len 32768"
    path = tmp_path / "pasted.txt"
    path.write_text(line)
    text = text_of(doctor(path, "device=a100_80gb"))
    (told,) = re.findall(
        r"! sampling for 256 .* for (\d+) it would be .* --max-num-seqs (\d+)", text
    )
    assert told == ("128", "128")
