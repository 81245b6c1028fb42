"""What releases of vLLM refuse of their own arguments, and the knob beside it, which is taken."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from advice_requests import outcome, with_changes

from kvpipe.engines.arguments import CHECKS, Arguments, refused_arguments
from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request

LLAMA = ["model=llama", "device=h100_80gb", "backend=meta", "scheduler.max_model_len=8192"]
OF_0_33 = ["engine=vllm_0_33", "cache.kv_cache_memory_bytes=10GiB"]
STEP = Arguments(
    max_num_batched_tokens=2048, max_num_seqs=16, dtype="auto", compute_capability=None
)
REFUSED = {
    "a batch of fewer tokens than requests": (
        ["scheduler.max_num_batched_tokens=64", "scheduler.max_num_seqs=1024"],
        r"scheduler\.max_num_batched_tokens: expected at least scheduler\.max_num_seqs=1,024",
    ),
    "bfloat16 on a device that has none": (
        ["device=t4", "model.dtype=bfloat16"],
        r"model\.dtype: expected float16 on a device of compute capability 7\.5",
    ),
    "context ranks of heads without copies": (
        ["parallel.tensor_parallel_size=2", "parallel.decode_context_parallel_size=2"],
        r"decode_context_parallel_size: expected 1 with 8 K/V heads on 2 tensor ranks",
    ),
    "more context ranks than copies": (
        ["parallel.tensor_parallel_size=16", "parallel.decode_context_parallel_size=4"],
        r"decode_context_parallel_size: expected 1, 2 with 8 K/V heads on 16 tensor ranks",
    ),
    "a partition of other layers": (
        ["parallel.pipeline_parallel_size=2", "parallel.pipeline_partition=[2,29]"],
        r"parallel\.pipeline_partition: expected .*32",
    ),
    "a partition of other stages": (
        ["parallel.pipeline_parallel_size=2", "parallel.pipeline_partition=[2,10,20]"],
        r"parallel\.pipeline_partition: expected",
    ),
    "heads that do not divide": (
        ["parallel.tensor_parallel_size=3"],
        r"parallel\.tensor_parallel_size: expected one of 1, 2, 4, 8, 16, 32 \(32 attention heads",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_release_refuses_is_refused_before_anything_is_planned(name: str) -> None:
    words, match = REFUSED[name]
    base = [word for word in LLAMA if word.partition("=")[0] not in " ".join(words)]
    with pytest.raises(ConfigError, match=match):
        prepared_request([*base, *OF_0_33, *words])


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in REFUSED if "partition" not in name])
def test_the_knob_beside_it_is_taken(name: str) -> None:
    """Each `key=value` of the knob alone, but for those that it joins by "with"."""
    words, _ = REFUSED[name]
    base = [word for word in LLAMA if word.partition("=")[0] not in " ".join(words)]
    with pytest.raises(ConfigError) as caught:
        prepared_request([*base, *OF_0_33, *words])
    (problem,) = caught.value.problems
    for way in re.split(r"; | or ", problem.knob):
        said = re.findall(r"([a-z_]+\.[a-z_]+)=([\w.]+)", way)
        for changes in [dict(said)] if " with " in way else [{key: value} for key, value in said]:
            assert outcome(with_changes([*base, *OF_0_33, *words], changes)), changes


def test_copies_of_heads_take_context_ranks() -> None:
    words = ["parallel.tensor_parallel_size=16", "parallel.decode_context_parallel_size=2"]
    assert outcome([*LLAMA, *OF_0_33, *words])


@pytest.mark.parametrize(("length", "chunked", "is_refused"), [
    (8192, False, True), (8192, True, False), (2048, False, False),
])  # fmt: skip
def test_whole_prompts_need_a_batch_that_holds_one(
    length: int, chunked: bool, is_refused: bool
) -> None:
    asked = replace(STEP, max_model_len=length, chunked=chunked)
    assert bool(list(refused_arguments(asked, "0.33.0"))) is is_refused


def test_a_release_in_which_a_check_was_not_read_is_told_so() -> None:
    asked = replace(STEP, compute_capability=(12, 0), latent_dtype="fp8_e4m3")
    told = {v: str(*refused_arguments(asked, v)) for v in ("0.7.1", "0.10.2", "0.17.0")}
    assert ["inferred, not read" in text for text in told.values()] == [True, True, False]


def test_every_check_has_a_source() -> None:
    assert all(check.source for check in CHECKS)
