"""Profiling: every byte has a source, and the sums are those of an engine."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from kvpipe.backends.base import MemoryInfo
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.models.base import ModelGeometry
from kvpipe.plugins import REGISTRIES
from kvpipe.request.confdir import shipped_option
from kvpipe.stages.profiling.base import MemoryProfile, ProfilingRequest
from kvpipe.stages.profiling.every_rank import profile_every_rank
from kvpipe.stages.validation.base import ResolvedDevice, ResolvedParallel

GIB = 2**30
H100 = ResolvedDevice(
    name="h100", type="cuda", is_here=False, total_bytes=80 * GIB, free_bytes=None, source="test"
)
CPU = ResolvedDevice(
    name="cpu", type="cpu", is_here=True, total_bytes=16 * GIB, free_bytes=8 * GIB, source="test"
)
LLAMA = ModelGeometry(
    name="llama",
    file_dtype="bfloat16",
    context_length=131072,
    num_layers=32,
    caches=(),
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128256,
    parameter_count=8_030_261_248,
)
REQUEST = ProfilingRequest(
    model=LLAMA,
    served_dtype="bfloat16",
    device=H100,
    parallel=ResolvedParallel(tp=1, pp=1, dcp=1),
    gpu_memory_utilization=0.9,
    kv_cache_memory_bytes=None,
    max_num_batched_tokens=2048,
    max_num_seqs=256,
)


class Meter:
    """A device that says how much it has."""

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(total_bytes=16 * GIB, free_bytes=6 * GIB, source="meter")


def profile(
    name: str, request: ProfilingRequest, may_exceed_device: bool = False, **options: object
) -> MemoryProfile:
    plugin = REGISTRIES["profiling"].get(name)
    settings = {**shipped_option("profiling", name), **options}
    made = plugin(plugin.Options(**settings))
    return profile_every_rank(made, request, Meter(), may_exceed_device=may_exceed_device)


@pytest.mark.parametrize("name", ["auto", "fixed", "measured", "utilization"])
def test_bytes_set_by_hand_win_over_every_plugin(name):
    device = replace(CPU, is_here=True)
    asked = replace(REQUEST, kv_cache_memory_bytes=30 * GIB, device=device)
    got = profile(name, asked)
    assert got.available_kv_bytes == (30 * GIB,)
    assert got.ranks[0].available_kv.source == "cache.kv_cache_memory_bytes"


def test_utilization_is_a_share_of_the_whole_less_every_charged_item():
    (rank,) = profile("utilization", REQUEST).ranks
    weights, activations, other = rank.charged
    assert rank.requested.num_bytes == ceil(80 * GIB * 0.9)
    assert weights.num_bytes == 8_030_261_248 * 2 and weights.how == "exact"
    by_hand = 2048 * (2 * 4096 + 3 * 14336) * 2 + 256 * 128256 * 4
    assert activations.num_bytes == by_hand and activations.how == "estimated"
    assert other.how == "nominal"
    left = rank.requested.num_bytes - weights.num_bytes - by_hand - other.num_bytes
    assert rank.available_kv_bytes == left
    assert all(item.source for item in (*rank.charged, rank.total, rank.requested))


def test_items_set_by_hand_are_taken_as_they_are():
    sizes = {"weights_bytes": 16 * GIB, "activation_bytes": "2GiB", "other_bytes": GIB}
    (rank,) = profile("utilization", REQUEST, **sizes).ranks
    assert [item.how for item in rank.charged] == ["set"] * 3
    assert rank.available_kv_bytes == ceil(80 * GIB * 0.9) - 19 * GIB


def test_ranks_share_the_weights():
    parallel = ResolvedParallel(tp=2, pp=2, dcp=1)
    got = profile("utilization", replace(REQUEST, parallel=parallel))
    assert [rank.rank for rank in got.ranks] == [0, 1, 2, 3]
    assert got.ranks[3].charged[0].num_bytes == 8_030_261_248 * 2 // 4


def test_weights_that_fill_the_device_leave_nothing_and_no_share_is_advised():
    big = replace(LLAMA, parameter_count=70_000_000_000, num_attention_heads=64)
    request = replace(REQUEST, model=big)
    with pytest.raises(DoesNotFit, match="59.20 GiB too few") as caught:
        profile("utilization", request)
    assert "weights 130.39 + activations" in str(caught.value)
    assert caught.value.needed_bytes > caught.value.available_bytes
    assert "Raise it" not in str(caught.value)


def test_utilization_is_advised_where_it_helps():
    tight = replace(REQUEST, gpu_memory_utilization=0.1)
    with pytest.raises(DoesNotFit, match=r"The first block needs more than 0\.\d+") as caught:
        profile("utilization", tight)
    value = float(str(caught.value).partition("The first block needs more than ")[2][:5]) + 0.001
    assert (
        profile("utilization", replace(tight, gpu_memory_utilization=value)).available_kv_bytes[0]
        > 0
    )


def test_bytes_by_hand_are_taken_at_their_word_beside_the_weights():
    asked = replace(REQUEST, kv_cache_memory_bytes=100 * GIB)
    (rank,) = profile("fixed", asked, may_exceed_device=True).ranks
    assert rank.available_kv_bytes == 100 * GIB
    assert rank.requested.num_bytes == 100 * GIB + 8_030_261_248 * 2


def test_bytes_by_hand_beyond_the_device_do_not_fit_unless_that_is_meant():
    for num_bytes in (80 * GIB, 80 * GIB + 1):
        asked = replace(REQUEST, kv_cache_memory_bytes=num_bytes)
        if num_bytes > REQUEST.device.total_bytes:
            with pytest.raises(DoesNotFit, match=r"If that is meant: cache.may_exceed_device=true"):
                profile("auto", asked)
        assert profile("auto", asked, may_exceed_device=True).available_kv_bytes == (num_bytes,)


@pytest.mark.parametrize(("sizes", "rank"), [([16, 79], 0), ([20, 79], 0), ([79, 79], 1)])
def test_a_rank_of_an_uneven_pipeline_is_profiled_on_its_own_card_alone(sizes, rank):
    parallel = ResolvedParallel(tp=1, pp=2, dcp=1)
    asked = replace(REQUEST, parallel=parallel, stage_layers=(2, 30))
    plugin = REGISTRIES["profiling"].get("estimate")
    made = plugin(plugin.Options(**shipped_option("profiling", "estimate")))
    got = profile_every_rank(made, asked, Meter(), sizes=[size * GIB for size in sizes])
    assert [each.rank for each in got.ranks] == [0, 1]
    assert [each.total.num_bytes for each in got.ranks] == [size * GIB for size in sizes]
    alone = made.run(replace(asked, device=replace(H100, total_bytes=79 * GIB)), Meter())
    assert got.ranks[1].available_kv == alone.ranks[1].available_kv


def test_unknown_weights_are_asked_for():
    with pytest.raises(ConfigError, match="profiling.weights_bytes: expected bytes"):
        profile("utilization", replace(REQUEST, model=replace(LLAMA, parameter_count=None)))


def test_a_cpu_is_charged_no_weights_and_never_gives_more_than_half_of_what_is_free():
    (rank,) = profile("utilization", replace(REQUEST, device=CPU)).ranks
    assert sum(item.num_bytes for item in rank.charged) == 0
    assert rank.available_kv_bytes == 4 * GIB


def test_the_default_on_a_cpu_is_a_small_budget():
    request = replace(REQUEST, device=CPU)
    assert profile("auto", request).available_kv_bytes == (GIB,)
    small = replace(request, device=replace(CPU, free_bytes=2 * GIB))
    (rank,) = profile("auto", small).ranks
    assert rank.available_kv_bytes == GIB // 2 and "quarter" in rank.available_kv.source


def test_the_default_on_a_gpu_is_the_calibrated_estimate():
    assert profile("auto", REQUEST) == profile("estimate", REQUEST)
    assert profile("auto", REQUEST).ranks[0].available_kv.low_bytes is not None


def test_measured_asks_the_device():
    (rank,) = profile("measured", replace(REQUEST, device=CPU)).ranks
    assert rank.available_kv_bytes == 3 * GIB and rank.available_kv.how == "measured"
    here = replace(H100, is_here=True)
    (rank,) = profile("measured", replace(REQUEST, device=here)).ranks
    assert rank.available_kv_bytes == int(6 * GIB * 0.9)
    with pytest.raises(ConfigError, match="is not here"):
        profile("measured", REQUEST)


def test_fixed_needs_its_bytes():
    with pytest.raises(ConfigError, match="cache.kv_cache_memory_bytes: expected bytes a rank"):
        profile("fixed", REQUEST)
