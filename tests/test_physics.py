"""Bounds on time: what a request reads is counted token by token; the bound is never too slow."""

from __future__ import annotations

import pytest

from kvpipe.answers.speed import speed_of
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import ModelGeometry
from kvpipe.physics.bounds import StepBound, read_share
from kvpipe.physics.lengths import ListedLengths
from kvpipe.physics.peaks import peak_of
from kvpipe.physics.reads import CacheReads, cache_reads
from kvpipe.plugins import SPECS
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.runs import num_indices

LIMITS = RequestLimits(max_model_len=400, max_num_batched_tokens=64, max_encoder_tokens=30)
EXAMPLES = [
    pytest.param(spec, id=f"{name}-{i}")
    for name in SPECS.names()
    for i, spec in enumerate(SPECS.get(name).examples())
    if spec.holds_blocks
]


@pytest.mark.parametrize("spec", EXAMPLES)
def test_a_query_reads_what_its_spec_says_it_sees(spec) -> None:
    """States are read whole; of the others, the bytes of each position that is seen."""
    layers = [CacheLayer(name=f"{i}", spec=spec) for i in range(3)]
    reads = cache_reads(layers, LIMITS)
    lengths = [1, 7, 64, 399]
    expected = 0.0
    for length in lengths:
        seen = num_indices(spec.visible(length - 1, LIMITS))
        a_token = spec.real_page_size_bytes / spec.block_size
        expected += 3 * (spec.real_page_size_bytes if spec.is_state else seen * a_token)
    assert reads.of(ListedLengths(lengths)) == pytest.approx(expected)
    assert reads.of(ListedLengths(lengths)) == pytest.approx(
        sum(reads.of(ListedLengths([n])) for n in lengths)
    )


def test_a_layer_that_reads_anothers_cache_is_counted_once() -> None:
    spec = SPECS.get("full").examples()[0]
    own = CacheLayer(name="a", spec=spec)
    shared = CacheLayer(name="b", spec=spec, shares_with="a")
    assert cache_reads([own, shared], LIMITS) == cache_reads([own], LIMITS)


def test_a_step_takes_the_longer_of_reading_and_computing() -> None:
    bound = StepBound(
        weight_bytes=2e9, weights=1e9, reads=CacheReads(slope=1e3), bandwidth=1e12, peak=1e14
    )
    assert bound.seconds(ListedLengths([1000, 2000]), 2) == pytest.approx((2e9 + 3e6) / 1e12)
    assert bound.seconds(ListedLengths(), 10_000) == pytest.approx(2 * 1e9 * 10_000 / 1e14)
    assert bound.first_token_seconds(2500, 1000) == pytest.approx(
        2 * bound.seconds(ListedLengths(), 1000) + bound.seconds(ListedLengths(), 500)
    )
    half = StepBound(**{**vars(bound), "efficiency": 0.5})
    assert half.token_seconds(4, 100) == pytest.approx(2 * bound.token_seconds(4, 100))


def test_of_experts_only_those_of_one_token_are_sure_to_be_read() -> None:
    dense = ModelGeometry(
        name="m",
        file_dtype="bfloat16",
        context_length=1,
        num_layers=10,
        caches=(),
        hidden_size=100,
        vocab_size=1000,
        parameter_count=10**6,
    )
    assert read_share(dense) == pytest.approx(1 - 1000 * 100 / 10**6)
    many = ModelGeometry(**{**vars(dense), "experts_per_token": 2, "expert_size": 10})
    assert read_share(many) == pytest.approx(0.5 * 10 * 3 * 100 * 2 * 10 / 10**6)


def test_narrow_weights_raise_the_peak_and_an_unknown_card_has_none() -> None:
    assert peak_of("h100_80gb", 2.0) == 990e12
    assert peak_of("h100_80gb", 1.0) == 2 * peak_of("h100_80gb", 2.0)
    assert peak_of("h100_80gb", 0.5) == 4 * peak_of("h100_80gb", 2.0)
    assert peak_of("thor", 2.0) is None


def speed(*words: str):
    return speed_of(prepared_request([*words, "backend=meta"]).prepared)


def test_a_device_without_bandwidth_shows_no_time_and_says_why() -> None:
    found = speed("model=tinyllama", "device=cpu")
    assert found.bound is None and "names no bandwidth" in found.why


def test_a_window_reads_less_than_full_attention_at_the_same_length() -> None:
    """gpt-oss-20b: 12 of 24 layers see 128 tokens."""
    ours = speed("model=gpt_oss_20b", "device=h100_80gb").bound
    full = speed("model=gpt_oss_20b", "device=h100_80gb", "attention=full").bound
    a_layer = 2 * 8 * 64 * 2
    assert ours is not None and full is not None
    assert ours.reads.of(ListedLengths([8192])) == 12 * a_layer * (8192 + 128)
    assert full.reads.of(ListedLengths([8192])) == 24 * a_layer * 8192


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_the_weights_that_are_read(ranks: int) -> None:
    words = ("model=llama", "device=h100_80gb", f"parallel.tensor_parallel_size={ranks}")
    bound = speed(*words).bound
    assert bound is not None
    assert bound.weight_bytes * ranks == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=0.01)
    assert bound.weights * 2 == pytest.approx(bound.weight_bytes)
