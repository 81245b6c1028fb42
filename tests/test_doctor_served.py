"""`kvpipe doctor` of servers that ran: other engines' logs, full ones, logs beside words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_doctor import CASES, FAILED, doctor, pasted, text_of

from kvpipe.logs.reading import read_log

SERVED = CASES / "other_starts"


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
    answer = doctor(SERVED / "sglang_share.log", "device=h100_80gb")
    text = text_of(answer)
    # 61.4 + 17.1 = 78.5 were free; 1 - 17.1 / 78.5 = 0.7822; 17.1 - 0.21 x 78.5 = 0.615.
    assert "keeps 23.55 GiB of the 78.50" in text and "the weights left 17.10" in text
    assert "--mem-fraction-static 0.79 is the least that leaves any, 0.61 GiB" in text
    assert "increase --mem-fraction-static" in text and answer.exit_code == 1
    assert "--max-num-seqs" not in text and "a request may have 32,768 tokens" in text


def test_others_on_the_card_of_another_engine_are_told_without_vllms_flags(tmp_path: Path) -> None:
    log = (SERVED / "sglang_share.log").read_text().split("[2026-03-04 10:01:25")[0]
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


# --- said beside ---
REFUSED = SERVED / "too_long_0_9_1.log"  # at a share of 0.9: 6.54 GiB, 8.00 are needed


def test_a_log_is_read_at_its_own_ranks_and_what_was_said_is_planned_from_its_memory() -> None:
    answer = doctor(SERVED / "vllm_0_11.log", "device=h100_80gb", "parallel.tensor_parallel_size=2")
    text = text_of(answer)
    assert "on 4 x h100_80gb" in text and "unknown" not in text
    assert "tokens 941360, concurrency 7.18" in text  # reproduced at the log's own ranks
    assert "the log is of --tensor-parallel-size 4, and --tensor-parallel-size 2 was said" in text
    assert "from the log's memory that does not fit" in text and answer.exit_code == 1
    length = int(re.search(r"--max-model-len (\d+)", answer.fields["paste"])[1])
    # 35.91 GiB less the 32.89 more of weights; 80 layers x 2 x 4 heads x 128 bytes a token.
    assert length * 81_920 < (35.91 - 32.8) * 2**30
    assert "--tensor-parallel-size 2" in answer.fields["paste"]


@pytest.mark.full
def test_advice_of_a_log_can_be_checked_beside_the_log() -> None:
    first = doctor(REFUSED, "device=h100_80gb")
    assert "or --gpu-memory-utilization 0.92" in text_of(first) and first.exit_code == 1
    answer = doctor(REFUSED, "device=h100_80gb", "cache.gpu_memory_utilization=0.92")
    text = text_of(answer)
    # 6.54 + 0.02 x 79.19 = 8.12 GiB: 2,079 blocks of 4 MiB.
    assert "2,079 blocks hold 1 request of 32,768 tokens" in text and answer.exit_code == 0
    assert "--gpu-memory-utilization 0.92" in answer.fields["paste"]
    less = doctor(REFUSED, "device=h100_80gb", "cache.gpu_memory_utilization=0.91")
    assert "from the log's memory that does not fit" in text_of(less) and less.exit_code == 1


@pytest.mark.full
def test_a_card_that_cannot_hold_what_the_log_says_is_not_the_logs() -> None:
    answer = doctor(SERVED / "vllm_0_11.log", "device=l40s", "parallel.tensor_parallel_size=4")
    text = text_of(answer)
    # 32.89 + 35.91
    assert "the log is not of l40s, which has 44.42 GiB" in text and "68.80 GiB a card" in text
    assert "by estimate" in text and answer.exit_code == 1
    free = doctor(REFUSED, "device=a100_40gb")
    assert "the log is not of a100_40gb" in text_of(free) and not free.fields["paste"]


def test_every_card_of_a_replicated_line_is_counted(tmp_path: Path) -> None:
    line = "vllm serve Qwen/Qwen3-8B -tp 2 --data-parallel-size 2"
    assert "on 4 x l40s" in text_of(doctor(pasted(tmp_path, line), "device=l40s"))


@pytest.mark.full
def test_what_was_said_instead_of_a_lines_own_flag_is_told(tmp_path: Path) -> None:
    path = pasted(tmp_path, "vllm serve Qwen/Qwen3-8B -tp 4")
    text = text_of(doctor(path, "device=l40s", "parallel.tensor_parallel_size=2"))
    assert "planned with --tensor-parallel-size 2, as was said; the line has" in text
    same = text_of(doctor(path, "device=l40s", "parallel.tensor_parallel_size=4"))
    assert "as was said" not in same


# --- a full server ---
def test_a_full_cache_with_a_queue_is_told_with_planned_ways_to_more_room() -> None:
    answer = doctor(SERVED / "vllm_0_11.log", "device=h100_80gb")
    text = text_of(answer)
    assert "in 2 of 2 lines" in text and "23 run, 19 wait, 99.8% is in use" in text
    # 35.91 GiB and half of 32.89 more: (35.91 + 16.4) / 35.91 = 1.45 at most.
    assert re.search(r"--quantization fp8 \(1\.4[0-5] times the tokens\)", text)
    assert "--quantization fp8" in answer.fields["paste"] and answer.exit_code == 0
    assert "nothing is wrong" not in text


@pytest.mark.full
def test_a_server_with_room_or_without_a_queue_is_not_called_full(tmp_path: Path) -> None:
    log = (SERVED / "vllm_0_11.log").read_text()
    idle = log.replace("Waiting: 13", "Waiting: 0").replace("Waiting: 19", "Waiting: 0")
    roomy = log.replace("99.1%", "41.0%").replace("99.8%", "42.0%")
    for text in (idle, roomy):
        assert "nothing is wrong" in text_of(doctor(pasted(tmp_path, text), "device=h100_80gb"))


def test_a_full_pool_of_another_engine_is_told() -> None:
    text = text_of(doctor(SERVED / "sglang.log"))
    assert "30 run, 22 wait, 99.0% is in use" in text and "nothing is wrong" not in text


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("WARNING scheduler.py:1242] Sequence group 7 is preempted by PreemptionMode.RECOMPUTE "
         "mode because there is not enough KV cache space. total_num_cumulative_preemption=51", 51),
        ("KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.6", 3),
    ],
)  # fmt: skip
def test_requests_that_lost_their_memory_are_counted(line: str, lost: int) -> None:
    name = "sglang.log" if "retracted" in line else "vllm_0_11.log"
    log = read_log(f"{(SERVED / name).read_text()}{line}\n")
    assert log.load.preempted == lost


@pytest.mark.full
def test_a_log_that_ends_before_its_memory_lines_is_told_to_be_estimated(tmp_path: Path) -> None:
    head = (
        (SERVED / "vllm_0_11.log").read_text().split("(Worker_TP0 pid=300)[0;0m INFO 11-03 09:03")
    )
    assert len(head) == 2
    text = text_of(doctor(pasted(tmp_path, head[0]), "device=a100_80gb"))
    assert "it ends before a line gives the cache's memory, so that is estimated" in text
    whole = text_of(doctor(SERVED / "vllm_0_11.log", "device=h100_80gb"))
    assert "so that is estimated" not in whole
