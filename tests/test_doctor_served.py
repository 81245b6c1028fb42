"""`kvpipe doctor` of servers that ran: other engines' logs, full ones, logs beside words."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_doctor import CASES, FAILED, doctor, pasted, text_of

SERVED = CASES / "served"


# --- other engines ---
@pytest.mark.parametrize(
    ("name", "told", "words"),
    [
        # 16,384 MiB of arrays, as the log prints; it serves 131,072 cells and has no null block.
        ("llama_cpp.log", ("arrays of the cache 16.00 GiB", "131,072 cells for 4 requests"),
         ("model=llama", "device=rtx_4090", "weights=q4_k_m")),
        # 17.95 and 17.95 GB of keys and values.
        ("sglang.log", ("arrays of the cache 35.90 GiB", "294,011 tokens of cache",
                        "mem_fraction_static 0.85"), ("device=h100_80gb",)),
        ("sglang.log", ("SGLang, Qwen/Qwen3-32B",), ()),
    ],
)  # fmt: skip
def test_the_log_of_another_engine_is_told_by_its_own_lines_and_nothing_of_vllm(
    name: str, told: tuple[str, ...], words: tuple[str, ...]
) -> None:
    answer = doctor(SERVED / name, *words)
    text = text_of(answer)
    assert answer.exit_code == 0 and not answer.complaints
    assert "its flags are not diagnosed" in text
    assert all(each in text for each in told)
    assert "vllm" not in text.lower() and "--max-" not in text and "null block" not in text
    assert not answer.fields["paste"]


def test_a_share_that_leaves_sglang_nothing_is_told_with_the_least_that_does() -> None:
    answer = doctor(FAILED / "sglang_share.log", "device=h100_80gb")
    text = text_of(answer)
    # 61.4 + 17.1 = 78.5 were free; 1 - 17.1 / 78.5 = 0.7822; 17.1 - 0.21 x 78.5 = 0.615.
    assert "keeps 23.55 GiB of the 78.50" in text and "the weights left 17.10" in text
    assert "--mem-fraction-static 0.79 is the least that leaves any, 0.61 GiB" in text
    assert "increase --mem-fraction-static" in text and answer.exit_code == 1
    assert "--max-num-seqs" not in text and "a request may have 32,768 tokens" in text


def test_others_on_the_card_of_another_engine_are_told_without_vllms_flags(tmp_path: Path) -> None:
    log = (FAILED / "sglang_share.log").read_text().split("[2026-03-04 10:01:25")[0]
    log += next(x for x in (FAILED / "out_of_memory.log").read_text().split("\n") if "Tried" in x)
    text = text_of(doctor(pasted(tmp_path, log)))
    assert "other processes hold 7.30 GiB. Stop them" in text and "--gpu-memory" not in text


# --- capacity without memory ---
V0_5_4 = """\
INFO 08-10 10:00:00 llm_engine.py:176] Initializing an LLM engine (v0.5.4) with config: \
model='meta-llama/Meta-Llama-3-8B-Instruct', dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=1
INFO 08-10 10:00:30 model_runner.py:732] Loading model weights took 14.9595 GB
INFO 08-10 10:00:32 gpu_executor.py:102] # GPU blocks: 27895{}
"""


@pytest.mark.parametrize("rest", ["", ", # CPU blocks: 2048"])
def test_blocks_that_were_printed_are_planned_where_no_line_gives_the_memory(
    tmp_path: Path, rest: str
) -> None:
    answer = doctor(pasted(tmp_path, V0_5_4.format(rest)), "device=h100_80gb")
    text = text_of(answer)
    # A block of 16 tokens is 32 layers x 2 x 8 heads x 128 x 2 bytes x 16 = 2 MiB.
    assert "the cache has 54.48 GiB: 27,895 blocks were printed, and no memory" in text
    assert "27,895 blocks hold 53 requests" in text and "28,105" not in text
    assert "--num-gpu-blocks-override 27895" in answer.fields["paste"]


def test_tokens_that_were_printed_are_planned_where_no_line_gives_the_memory(
    tmp_path: Path,
) -> None:
    lines = (SERVED / "vllm_0_11.log").read_text().splitlines(keepends=True)
    log = "".join(line for line in lines if "Available KV" not in line)
    text = text_of(doctor(pasted(tmp_path, log), "device=h100_80gb"))
    assert "the cache has 35.91 GiB: 941,360 tokens were printed" in text  # as its own line says
    assert "58,835 blocks hold 7 requests" in text  # 941,360 / 16
