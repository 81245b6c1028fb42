"""Logs that were once explained only with hints, by what each printed; none of them is a record."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_log_answers import compared

pytestmark = pytest.mark.full

REFUSAL = (
    "INFO Initializing a V1 LLM engine (v{release}) with config: model='/m', max_seq_len={length}\n"
    "INFO Available KV cache memory: {memory:.2f} GiB\n"
    "ERROR ValueError: To serve at least one request with the models's max seq len ({length}), "
    "({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
    "({memory:.2f} GiB). Based on the available memory, the estimated maximum model length is "
    "{longest}.\n"
)
START = (
    "INFO Initializing a V1 LLM engine (v{release}) with config: model='/m', max_seq_len={length}\n"
    "INFO Available KV cache memory: {memory:.2f} GiB\n"
    "INFO GPU KV cache size: {tokens:,} tokens\n"
    "INFO Maximum concurrency for {length:,} tokens per request: {times}x\n"
)
HYBRID = "model=qwen3_5_27b"


def test_a_hybrid_in_mode_align_is_found(tmp_path: Path) -> None:
    """Block 1,568 with 8-bit K and V: 208 blocks over 90 a request are 2.31 of 131,072 tokens."""
    log = START.format(release="0.23.1", length=131072, memory=10, tokens=302_921, times="2.31")
    log += "INFO Setting attention block size to 1568 tokens\n"
    log += "INFO non-default args: {'kv_cache_dtype': 'fp8'}\n"
    found = compared(tmp_path, log, HYBRID).agreeing
    assert any("cache.mamba_cache_mode=align" in each.supposed for each in found)


def test_an_encoder_budget_is_found(tmp_path: Path) -> None:
    """4,152 blocks over 28 of a decoder and 128 of an encoder that is given 2,048 tokens."""
    log = START.format(release="0.17.0", length=448, memory=10.14, tokens=33_216, times="26.62")
    said = ["model=whisper_large_v3", "scheduler.max_num_batched_tokens=4096"]
    answer = compared(tmp_path, log, *said)
    assert not answer.by_rules[0].agrees
    supposed = {word for each in answer.agreeing for word in each.supposed}
    assert "scheduler.max_encoder_tokens=2048" in supposed


def test_drafted_tokens_that_the_log_leaves_out_are_found(tmp_path: Path) -> None:
    from test_log_answers import written

    hidden = "scheduler.num_speculative_tokens=2"
    log = written("model=qwen3_next", hidden, "cache.cache_dtype=fp8")
    log += "INFO non-default args: {'kv_cache_dtype': 'fp8'}\n"
    answer = compared(tmp_path, log, "model=qwen3_next")
    assert (hidden,) in {each.supposed for each in answer.agreeing}


def test_swap_space_is_no_fault_of_the_memory(tmp_path: Path) -> None:
    """6 GiB of swap: the sentence about memory that agrees is not said."""
    log = "INFO LLM engine (v0.6.4) with config: model='/m', max_seq_len=20000\n"
    log += "INFO kv_cache_size=3.81GiB\n# GPU blocks: 1952, # CPU blocks: 3072\n"
    assert all(each.agrees for each in compared(tmp_path, log, "model=llama").agreeing)


def test_a_refusal_is_compared_at_its_own_length(tmp_path: Path) -> None:
    """RTX 3090, 29,000 tokens: 1,478 blocks, 23,648 tokens, 0.82 of a request."""
    log = REFUSAL.format(release="0.10.0", length=29000, memory=2.89, needed=3.54, longest=23648)
    log += "INFO # GPU blocks: 1478, GPU KV cache size: 23,648 tokens\n"
    log += "INFO Maximum concurrency for 29,000 tokens per request: 0.82x\n"
    (found,) = compared(tmp_path, log, "model=llama", "device=rtx_3090").agreeing
    assert {"blocks", "tokens", "concurrency", "needed", "longest"} <= {t.name for t in found.terms}


@pytest.mark.parametrize(
    ("release", "longest", "agrees"),
    [("0.23.1", 123_872, True), ("0.23.1", 123_088, False), ("0.33.0", 123_088, True)],
)
def test_the_null_block_is_reserved_from_0_29_on(
    tmp_path: Path, release: str, longest: int, agrees: bool
) -> None:
    """161 blocks, 3 of them of states: 158 x 784 tokens; 157 with a null block."""
    told = {"length": 200_000, "memory": 7.71, "needed": 12.39, "longest": longest}
    answer = compared(tmp_path, REFUSAL.format(release=release, **told), HYBRID)
    terms = {term.name: term for term in (answer.agreeing or answer.nearest)[0].terms}
    assert terms["longest"].agrees is agrees, terms


def test_a_log_without_a_release_is_compared_as_the_one_that_was_said(tmp_path: Path) -> None:
    log = "INFO Available KV cache memory: 2.89 GiB\nINFO # GPU blocks: 1479\n"
    said = ["model=llama", "engine=vllm", "engine.version=0.24.0"]
    assert [each.engine for each in compared(tmp_path, log, *said).by_rules] == ["vllm 0.24.0"]


def test_memory_of_a_two_stage_pipeline_that_is_the_whole_models_is_read_so(tmp_path: Path) -> None:
    """24 GiB needed of a pipeline of two stages that hold 12 each."""
    log = REFUSAL.format(release="0.17.0", length=131_072, memory=10, needed=16.0, longest=81_920)
    answer = compared(
        tmp_path, log, "model=llama", "parallel.pipeline_parallel_size=2", "engine=vllm_0_17"
    )
    assert any("figures of the whole model" in each.supposed for each in answer.agreeing)
