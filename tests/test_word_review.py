"""Advice that was once followed and failed, and faults of ranks and rules: each input, once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from advice_requests import outcome

from kvpipe.answers.advised import advised
from kvpipe.answers.serve_line import line_of
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Result
from kvpipe.report.derived_notes import all_notes
from kvpipe.report.first_screen import first_screen
from kvpipe.report.of_run import report_input

pytestmark = pytest.mark.full

HYBRID = [
    "model=qwen3_5_27b",  # 64 layers, one in four with full attention, states in float32
    "device=h100_80gb",
    "backend=meta",
    "engine=vllm",
    "engine.version=0.23.1",
    "cache.kv_cache_memory_bytes=10GiB",
    "scheduler.max_model_len=4096",
]
MOE = ["model=qwen3_30b_a3b_thinking_2507", "device=h100_80gb", "backend=meta"]
LLAMA = ["model=llama", "device=h100_80gb", "backend=meta", "scheduler.max_model_len=8192"]
STAGES = ["parallel.pipeline_parallel_size=2", "parallel.pipeline_partition=[2,30]"]


def planned(words: list[str]) -> Result:
    answer = outcome(words)
    assert answer is not None and isinstance(answer[1], Result), answer
    return answer[1]


def refused(words: list[str]) -> DoesNotFit:
    answer = outcome(words)
    assert answer is not None and isinstance(answer[1], DoesNotFit)
    return advised(answer[0], answer[1])


def notes(words: list[str]) -> dict[str, str]:
    return {note.text: note.knob for note in all_notes(report_input(planned(words)))}


def knob(words: list[str], text: str) -> str:
    (found,) = [knob for said, knob in notes(words).items() if text in said]
    return found


def attention_block(words: list[str]) -> int:
    return max(
        group.spec.block_size
        for group in planned(words).plan.groups
        if not group.layer_spec(group.layer_names[0]).is_state
    )


# --- advice ---
@pytest.mark.parametrize(
    ("change", "block"),
    [
        ("cache.mamba_ssm_cache_dtype=bfloat16", 400),
        ("parallel.tensor_parallel_size=2", 784),
        ("parallel.tensor_parallel_size=4", 784),
        ("parallel.tensor_parallel_size=8", 400),
    ],
)
def test_giant_blocks_are_advised_what_makes_them_smaller(change: str, block: int) -> None:
    words = [*HYBRID, "scheduler.max_num_seqs=128"]
    assert attention_block(words) == 784
    assert attention_block([*words, change]) == block
    assert (change in knob(words, "attention blocks are 784")) is (block < 784)


def test_state_slots_are_advised_as_many_requests_as_blocks_and_no_length() -> None:
    words = [*HYBRID, "scheduler.max_num_seqs=256"]
    said = "is more than the 208 blocks"
    assert knob(words, said) == "scheduler.max_num_seqs=208, the largest legal value"
    for requests, is_warned in ((208, False), (209, True)):
        told = notes([*words[:-1], f"scheduler.max_num_seqs={requests}"])
        assert any(said in text for text in told) is is_warned
    for length in (2048, 512, 16):  # a shorter length gives no more blocks
        assert planned([*HYBRID, f"scheduler.max_model_len={length}"]).plan.num_blocks == 208


@pytest.mark.parametrize(("asked", "nearest"), [(100, 96), (1000, 992)])
def test_the_nearest_block_size_is_one_that_works(asked: int, nearest: int) -> None:
    words = [*LLAMA, "engine=vllm_0_33", "cache.kv_cache_memory_bytes=10GiB"]
    with pytest.raises(ConfigError, match=f"nearest: {nearest}"):
        prepared_request([*words, f"cache.block_size={asked}"])
    assert planned([*words, f"cache.block_size={nearest}"]).plan.num_blocks


@pytest.mark.parametrize(
    ("release", "length"),
    [("0.6.4", 120_896), ("0.10.2", 122_096), ("0.17.0", 122_096), ("0.20.0", 122_096),
     ("0.21.0", 122_096), ("0.33.0", 122_096)],
)  # fmt: skip
def test_the_length_that_is_named_runs_under_every_release(release: str, length: int) -> None:
    """48 layers of 1,024 bytes a token: 7,632 blocks, one of which is never given out."""
    words = [*MOE, "engine=vllm", f"engine.version={release}", "cache.cache_dtype=fp8"]
    words += ["cache.kv_cache_memory_bytes=5.59GiB", "scheduler.max_num_seqs=64"]
    words += ["scheduler.max_num_batched_tokens=2048"]
    error = refused([*words, "scheduler.max_model_len=221000"])
    assert f"Lower it to {length:,}" in str(error)
    assert planned([*words, f"scheduler.max_model_len={length}"])
    assert refused([*words, f"scheduler.max_model_len={length + 1}"])
    (size,) = [c for c in error.changes if "cache.kv_cache_memory_bytes" in c]
    raised = size["cache.kv_cache_memory_bytes"]  # a number of bytes, no rounded GiB
    assert planned([*words, "scheduler.max_model_len=221000",
                    f"cache.kv_cache_memory_bytes={raised}"])  # fmt: skip


def test_the_default_length_runs_before_0_21() -> None:
    words = ["model=llama", "device=rtx_3090", "backend=meta", "profiling=estimate"]
    held = planned([*words, "engine=vllm_0_17"]).plan.capacity
    assert held is not None and held.requests_at_peak == 1


def test_a_share_of_the_card_is_rounded_to_the_safe_side() -> None:
    """Weights of 131.4 GiB of 139.7: what is named works, a hundredth less does not."""
    words = ["model=llama3_70b", "device=h200", "backend=meta", "profiling=estimate"]
    words += ["engine=vllm_0_33", "scheduler.max_num_seqs=16", "scheduler.max_model_len=1024"]
    words += ["scheduler.max_num_batched_tokens=1024"]
    error = refused([*words, "cache.gpu_memory_utilization=0.9"])
    (named,) = [c for c in error.changes if "cache.gpu_memory_utilization" in c]
    share = named["cache.gpu_memory_utilization"]
    assert planned([*words, f"cache.gpu_memory_utilization={share}"])
    assert refused([*words, f"cache.gpu_memory_utilization={share - 0.01:.2f}"])
    if above := re.search(r"above (0\.\d+)", str(error)):
        for less in (float(above[1]), float(above[1]) - 0.001):
            assert refused([*words, f"cache.gpu_memory_utilization={less:.3f}"])


def test_where_the_sampler_decides_fewer_requests_are_advised_and_no_smaller_batch() -> None:
    words = [*MOE, "profiling=estimate", "engine=vllm_0_33", "scheduler.max_model_len=8192"]
    words += ["scheduler.max_num_seqs=1024"]
    said = knob(words, "sampling for 1,024 requests")
    assert said == "scheduler.max_num_seqs=256"
    told = notes([*words[:-1], said])
    assert not any("sampling for 1,024" in text for text in told)


def test_a_card_that_others_hold_is_never_told_the_whole_of_it() -> None:
    words = [*LLAMA, "profiling=estimate", "profiling.other_instances_bytes=60GiB"]
    for release in ("0.8.5", "0.33.0"):
        error = refused([*words, "engine=vllm", f"engine.version={release}"])
        assert "utilization=1" not in str(error) and "above 1" not in str(error)


def test_stages_of_different_kinds_are_not_told_to_turn_the_hybrid_manager_off() -> None:
    words = [*HYBRID, "parallel.pipeline_parallel_size=2", "parallel.pipeline_partition=[3,61]"]
    assert not any("hybrid" in knob for knob in notes(words).values())


# --- ranks ---
def test_a_stage_is_profiled_on_the_card_it_is_on() -> None:
    """Rank 0 holds two layers of 32, and an embedding: 1.85 GiB of weights."""
    words = [*LLAMA, *STAGES, "profiling=estimate"]
    result = planned([*words, "parallel.rank_memory_bytes=[16GiB,79GiB]"])
    first = next(item for item in result.profile.ranks[0].charged if item.name == "weights")
    assert f"{first.num_bytes / 2**30:.2f}" == "1.85"
    line = line_of(result)
    assert line.startswith("VLLM_PP_LAYER_PARTITION=2,30 vllm serve")


def test_a_refusal_names_the_rank_that_decides() -> None:
    words = [*MOE, "parallel.pipeline_parallel_size=2", "parallel.pipeline_partition=[16,32]"]
    words += ["cache.kv_cache_memory_bytes=3.18GiB", "scheduler.max_model_len=262144"]
    told = str(refused(words))
    assert "16.0 GiB" in told and "on rank 1" in told and "Lower it to 52,080" in told


def test_bytes_of_uneven_ranks_are_not_said_of_each() -> None:
    words = [*LLAMA, *STAGES, "cache.kv_cache_memory_bytes=20GiB", "engine=vllm_0_17"]
    result = planned(words)
    assert [round(rank.config.size_bytes / 2**30, 2) for rank in result.plan.ranks] == [1.33, 20.0]
    text = "\n".join(line.text for line in first_screen(report_input(result), 80))
    assert "10,922 blocks" in text and "1.33 GiB on each" not in text


def test_an_override_is_no_rank_that_is_poorer_than_others() -> None:
    words = [*LLAMA, "engine=vllm_0_33", "cache.kv_cache_memory_bytes=20GiB"]
    told = notes([*words, "cache.num_gpu_blocks_override=1000"])
    assert not any("poorest" in text for text in told)


# --- rules ---
@pytest.mark.parametrize(
    ("release", "is_charged"),
    [("0.6.3", False), ("0.6.4", True), ("0.7.2", False), ("0.8.5", True), ("0.21.0", False),
     ("0.33.0", False)],
)  # fmt: skip
def test_memory_of_other_processes_counts_by_release(release: str, is_charged: bool) -> None:
    words = ["model=qwen3_0_6b", "device=h100_80gb", "backend=meta", "profiling=estimate"]
    words += ["engine=vllm", f"engine.version={release}", "scheduler.max_model_len=2048"]
    words += ["scheduler.max_num_batched_tokens=2048", "scheduler.max_num_seqs=16"]
    alone, beside = (
        planned([*words, f"profiling.other_instances_bytes={held}GiB"]).profile.available_kv_bytes
        for held in (0, 4)
    )
    assert alone[0] - beside[0] == (4 * 2**30 if is_charged else 0)


def test_8_bits_of_latent_rows_are_refused_where_no_kernel_reads_them() -> None:
    words = ["model=deepseek_v3", "device=h200", "cache.cache_dtype=fp8"]
    words += ["backend=meta", "engine=vllm", "cache.kv_cache_memory_bytes=5GiB"]
    words += ["scheduler.max_model_len=8192", "parallel.tensor_parallel_size=8"]
    with pytest.raises(ConfigError, match=r"vLLM 0\.7\.1 has no kernel that reads latent rows"):
        prepared_request([*words, "engine.version=0.7.1"])
    assert planned([*words, "engine.version=0.17.0"])


def test_a_token_a_page_of_sglang_is_planned() -> None:
    from kvpipe.commands.engine_answer import answer_of_engine, planned_engine

    prepared = prepared_request([*LLAMA, "engine=sglang", "engine.page_size=1"]).prepared
    engine = planned_engine(prepared)
    assert engine is not None and answer_of_engine(prepared, engine).exit_code == 0


# --- new models, as their files say ---
SMALL = Path(__file__).parent / "cases" / "models"


def of_file(name: str, *more: str) -> list[str]:
    words = ["model=hf", f"model.path={SMALL / name}", "device=h200", "backend=meta"]
    return [*words, "engine=vllm_0_17", "cache.kv_cache_memory_bytes=1GiB", *more]


def test_a_vision_language_model_keeps_the_cache_of_its_text_part() -> None:
    """4 layers x (K and V) x 2 heads x 128 x 2 bytes: 4 KiB a token, 262,144 in a GiB."""
    result = planned(of_file("vl", "scheduler.max_model_len=8192"))
    assert result.plan.ranks[0].printed.num_tokens == 262_144


@pytest.mark.parametrize(("drafted", "block"), [(0, 1056), (3, 1072)])
def test_states_are_as_wide_as_the_file_says_and_drafted_tokens_widen_them(
    drafted: int, block: int
) -> None:
    words = of_file("gdn", "cache.mamba_cache_mode=align", "scheduler.max_model_len=8192")
    assert attention_block([*words, f"scheduler.num_speculative_tokens={drafted}"]) == block


@pytest.mark.parametrize(("drafted", "block"), [(0, 544), (3, 560)])
def test_states_of_16_bits_make_half_the_block(drafted: int, block: int) -> None:
    words = of_file("gdn", "cache.mamba_cache_mode=align", "scheduler.max_model_len=8192")
    words += ["cache.mamba_ssm_cache_dtype=bfloat16"]
    assert attention_block([*words, f"scheduler.num_speculative_tokens={drafted}"]) == block


def test_a_block_size_of_states_that_a_mode_does_not_read_is_said() -> None:
    words = [*HYBRID, "cache.mamba_cache_mode=align", "scheduler.max_num_seqs=128"]
    told = notes([*words, "cache.mamba_block_size=1568"])
    assert any("cache.mamba_block_size=1,568 is not read" in text for text in told)
    assert not any("is not read" in text for text in notes(words))


def test_the_small_files_are_those_that_were_reported() -> None:
    vl = json.loads((SMALL / "vl" / "config.json").read_text())
    assert vl["model_type"] == "qwen3_vl" and vl["text_config"]["num_key_value_heads"] == 2
