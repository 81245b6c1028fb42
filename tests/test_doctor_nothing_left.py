"""`kvpipe doctor` of a start that found no memory for its cache: the log that is pasted most."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_doctor import doctor, pasted, text_of

HEAD = "INFO 11-30 20:01:02 [api_server.py:1289] vLLM API server version {version}\n"
ARGS = "INFO 11-30 20:01:02 [utils.py:233] non-default args: {{'model': 'Qwen/Qwen3-32B', 'max_model_len': {length}}}\n"  # noqa: E501
LOADED = "INFO 11-30 20:01:30 [gpu_model_runner.py:2392] Model loading took 61.0347 GiB and 30 s\n"
LEFT = "INFO 11-30 20:01:50 [gpu_worker.py:298] Available KV cache memory: {left} GiB\n"
ENDED = "ERROR 11-30 20:01:50 [core.py:708] ValueError: No available memory for the cache blocks.\n"
FULL = pytest.mark.full
CARD = "device=h100_80gb"


def log_of(tmp_path: Path, left: str | None, version: str = "0.11.0", length: int = 40960) -> Path:
    text = HEAD.format(version=version) + ARGS.format(length=length) + LOADED
    text += LEFT.format(left=left) if left is not None else ""
    return pasted(tmp_path, text + ENDED)


@pytest.mark.parametrize(
    "left", ["-1.20", *(pytest.param(x, marks=FULL) for x in ("-0.30", "0.00"))]
)
def test_a_start_that_had_nothing_left_is_answered_as_the_pasted_line_is(
    left: str, tmp_path: Path
) -> None:
    """Both are told the same changes, and the line to run fits when it is followed."""
    line = "vllm serve Qwen/Qwen3-32B --max-model-len 40960"
    of_line = text_of(doctor(pasted(tmp_path, line), CARD, "engine=vllm", "engine.version=0.11.0"))
    answer = doctor(log_of(tmp_path, left), CARD)
    text = text_of(answer)
    assert answer.status == "does_not_fit" and f"the log says {left} GiB are left" in text
    assert "profiling.path" not in text and "No single change" not in text
    for way in ("--quantization fp8", "--tensor-parallel-size 2"):
        assert way in of_line and way in text
    followed = doctor(pasted(tmp_path, answer.fields["paste"]), CARD)
    assert followed.status == "fits"


def test_a_start_that_does_not_say_how_much_was_lacking_refutes_what_the_estimate_promises(
    tmp_path: Path,
) -> None:
    """By the estimate alone 4 GiB would be left, of which a little more of the card, or of the
    samplers' room, is enough; the log says that nothing was."""
    estimated = doctor(pasted(tmp_path, "vllm serve Qwen/Qwen3-32B --max-model-len 8192"), CARD)
    assert "blocks hold" in text_of(estimated)
    answer = doctor(log_of(tmp_path, None, version="0.17.0", length=8192), CARD)
    text = text_of(answer)
    assert "the log says nothing is left for the cache" in text and "blocks hold" not in text
    assert "that is estimated" not in text
    surely = text.partition("Planned, and fits: ")[2].partition("Planned, and may fit")[0]
    assert "--gpu-memory-utilization" not in surely and "--max-num-seqs" not in surely
    assert "--tensor-parallel-size 2" in surely and "--quantization fp8" in answer.fields["paste"]


@FULL
def test_a_log_that_holds_the_whole_models_weights_is_of_one_card_whatever_is_said(
    tmp_path: Path,
) -> None:
    """Two cards are what is asked about, not what the log is of."""
    answer = doctor(log_of(tmp_path, "-0.30"), CARD, "parallel.tensor_parallel_size=2")
    text = text_of(answer)
    assert "the log is of --tensor-parallel-size 1, and --tensor-parallel-size 2 was said" in text
    assert answer.exit_code == 0 and "--tensor-parallel-size 2" in answer.fields["paste"]


@FULL
def test_a_length_that_is_hardly_any_is_not_the_line_to_run(tmp_path: Path) -> None:
    """20 MiB hold 80 tokens of 40,960: true, planned, and no answer."""
    answer = doctor(log_of(tmp_path, "0.02"), CARD)
    assert re.search(r"--max-model-len \d\d \(the longest", text_of(answer))
    assert "--max-model-len 40960" in answer.fields["paste"]


def test_a_log_whose_weights_are_not_the_models_promises_no_more_than_the_card_has(
    tmp_path: Path,
) -> None:
    """74 GiB where the model weighs 131: of 8 bits it would not weigh 10."""
    args = ARGS.format(length=131072).replace("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B-Instruct")
    loaded = LOADED.replace("61.0347", "74.2000")
    text = HEAD.format(version="0.11.0") + args + loaded + LEFT.format(left="-3.52") + ENDED
    answer = doctor(pasted(tmp_path, text), CARD)
    assert "--quantization fp8" not in text_of(answer)
    assert doctor(pasted(tmp_path, answer.fields["paste"]), CARD).exit_code == 0
