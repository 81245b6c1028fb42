"""Rules of the vLLM presets that few published models exercise, with answers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_grouping import CHUNK, ENCODER, FULL, LIMITS, MIB, MLA, STATE, WINDOW, layers, made

from kvpipe.cache.plan import Plan
from kvpipe.engines.versions import rules_of
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.specs.bounds import Bound
from kvpipe.specs.sink import SinkFullAttentionSpec
from kvpipe.specs.sliding_mla import SlidingWindowMLASpec
from kvpipe.stages.grouping.planning import VLLM_0_17, VLLM_0_33, plan

HALF = replace(FULL, num_kv_heads=4)  # 32,768 bytes a page beside 65,536
PACKED: dict[str, Any] = {"rules": VLLM_0_33, "kv_cache_layout": "BLNHC"}
OFF: dict[str, Any] = {"disable_hybrid_kv_cache_manager": True}
LATENT_WINDOW = SlidingWindowMLASpec(
    block_size=16, head_size=576, dtype="bfloat16", cache_dtype="auto", sliding_window=1024
)


def indices(result: Plan) -> list[list[int]]:
    """Layer numbers of each group."""
    return [[int(name.split(".")[2]) for name in g.layer_names] for g in result.groups]


# --- packed groups: d repeats a group ------------------------------------------------------------
def test_of_two_equally_good_repeats_a_group_takes_the_larger() -> None:
    """Counts 2 (mixing) and 3: d = 2 adds 1 to the 3, d = 3 adds 1 to the 2."""
    result = made([FULL, HALF, FULL, HALF, WINDOW, WINDOW, WINDOW], **PACKED)
    assert indices(result) == [[0, 1, 2, 3], [4, 5, 6]]
    assert {group.spec.kind for group in result.groups} == {"uniform"}


def test_a_bucket_is_split_by_whole_repeats() -> None:
    """Counts 2 (mixing) and 4: d = 2 adds nothing; group i of 2 takes repeats i, i + 2."""
    result = made([FULL, HALF, FULL, HALF, *[WINDOW] * 4], **PACKED)
    assert indices(result) == [[0, 1, 2, 3], [4, 6], [5, 7]]


def test_repeats_take_one_layer_of_each_size_in_order_of_appearance() -> None:
    result = made([FULL, FULL, HALF, HALF, WINDOW, WINDOW], **PACKED)
    assert indices(result) == [[0, 2, 1, 3], [4, 5]]


def test_windows_are_split_to_the_width_of_the_widest_group() -> None:
    """No balanced bucket mixes sizes. Anchor: 2 full and 1 half = 163,840 bytes; 2 windows fit."""
    result = made([FULL, FULL, HALF, *[WINDOW] * 5], **PACKED)
    assert indices(result) == [[0, 1, 2], [3, 6], [4, 7], [5]]
    assert result.ranks[0].config.bytes_per_block == 163_840


def test_an_unbalanced_bucket_of_windows_cannot_be_split() -> None:
    narrow = replace(WINDOW, num_kv_heads=4)
    made([*[FULL] * 3, WINDOW, WINDOW, narrow], **PACKED)  # one group of windows: nothing to split
    with pytest.raises(ConfigError, match="sliding layers of 2 page sizes, unequally often"):
        made([FULL, *[WINDOW] * 8, narrow], **PACKED)


def test_states_of_unequal_pages_are_not_one_type_in_the_newer_engine() -> None:
    small = replace(STATE, states=STATE.states[:1])
    assert [g.spec.kind for g in made([STATE, small], rules=VLLM_0_17).groups] == ["uniform"]
    newer = made([STATE, small], rules=VLLM_0_33)
    assert [g.spec.page_size_padded for g in newer.groups] == [None, STATE.page_size_bytes]


# --- pages ---------------------------------------------------------------------------------------
def test_a_page_padded_by_hand_does_not_grow_with_its_block() -> None:
    """Even padding that adds nothing: the larger block no longer fits in it."""
    padded = replace(HALF, page_size_padded=HALF.page_size_bytes)
    assert len(made([WINDOW, HALF], rules=VLLM_0_17).groups) == 2
    with pytest.raises(ConfigError, match="got a full page of 32,768 bytes") as error:
        made([WINDOW, padded], rules=VLLM_0_17)
    assert error.value.reference_type == "AssertionError"


def test_a_latent_page_that_cannot_be_padded_promotes_plain_windows() -> None:
    result = made([MLA, WINDOW, MLA], rules=VLLM_0_33)
    assert [group.spec.kind for group in result.groups] == ["uniform"]
    assert result.groups[0].layer_spec("model.layers.1.attn").bound == Bound(sliding_window=1024)
    for other in (CHUNK, replace(LATENT_WINDOW, head_size=512)):
        with pytest.raises(ConfigError, match="an engine that pads mla pages") as error:
            made([MLA, WINDOW, other], rules=VLLM_0_33)
        assert error.value.reference_type == "NotImplementedError"


def test_other_pages_that_do_not_divide_are_padded_at_their_block_size() -> None:
    odd = replace(WINDOW, num_kv_heads=3)
    spec = made([FULL, odd], rules=VLLM_0_33).groups[1].spec
    assert (spec.block_size, spec.page_size_padded) == (16, FULL.page_size_bytes)


# --- types, merging ------------------------------------------------------------------------------
def test_latent_windows_may_follow_plain_ones_but_not_the_reverse() -> None:
    together = made([WINDOW, LATENT_WINDOW], **PACKED)
    assert [group.spec.kind for group in together.groups] == ["uniform"]
    assert indices(made([LATENT_WINDOW, WINDOW], **PACKED)) == [[0], [1]]


def test_a_group_takes_the_first_layers_sink_and_in_the_older_engine_its_value_width() -> None:
    sink = SinkFullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16", sink_len=4
    )
    assert made([sink, FULL], rules=VLLM_0_17).groups[0].spec == sink
    narrow = replace(FULL, head_size_v=64)
    assert made([FULL, narrow], rules=VLLM_0_17).groups[0].spec == FULL
    assert made([FULL, narrow], rules=VLLM_0_33).groups[0].spec.kind == "uniform"


def test_encoder_layers_of_two_block_sizes_are_not_asked_for_their_type() -> None:
    larger = replace(ENCODER, block_size=32, num_kv_heads=4)
    with pytest.raises(ConfigError) as error:
        made([ENCODER, larger], rules=VLLM_0_17)
    assert error.value.reference_type == "ZeroDivisionError"  # grouped; a request needs nothing


def test_a_bucket_accepts_what_merges_in_the_newer_engine() -> None:
    """A remembered window joins layers without one; a second window starts another bucket."""
    one, two = (replace(FULL, remembers=Bound(sliding_window=w)) for w in (64, 128))
    with pytest.raises(ConfigError, match="two values of sliding_window"):
        made([FULL, one, two], rules=VLLM_0_33)
    result = made([WINDOW, FULL, one, FULL], rules=VLLM_0_33)
    assert indices(result) == [[0], [1], [2], [3]]
    assert [g.spec.bound.sliding_window for g in result.groups] == [
        1024,
        None,
        64,
        None,
    ]


@pytest.mark.parametrize(("counts", "size"), [((4, 5), 4), ((8, 9), 9), ((4, 6), 4)])
def test_the_older_threshold_is_below_five_quarters(counts: tuple[int, int], size: int) -> None:
    result = made([FULL] * counts[0] + [WINDOW] * counts[1], rules=VLLM_0_17)
    assert max(len(group.layer_names) for group in result.groups) <= size
    assert result.ranks[0].config.bytes_per_block == size * FULL.page_size_bytes or size == 4


def test_the_newer_threshold_is_below_three_halves() -> None:
    result = made([FULL] * 4 + [WINDOW] * 5, rules=VLLM_0_33)
    assert [len(group.layer_names) for group in result.groups] == [4, 5]
    result = made([FULL] * 4 + [WINDOW] * 6, rules=VLLM_0_33)
    assert [len(group.layer_names) for group in result.groups] == [4, 3, 3]


# --- hybrid manager off --------------------------------------------------------------------------
def test_promoted_layers_take_the_full_layers_block_size_and_keep_their_padding() -> None:
    full = replace(FULL, block_size=32)
    window = replace(WINDOW, page_size_padded=200_000)
    result = made([full, window], rules=VLLM_0_33, **OFF)
    promoted = result.groups[0].layer_spec("model.layers.1.attn")
    assert (promoted.block_size, promoted.page_size_bytes) == (32, 200_000)
    small = replace(WINDOW, page_size_padded=70_000)
    result = made([full, small], rules=VLLM_0_33, **OFF)
    assert result.groups[0].layer_spec("model.layers.1.attn").page_size_bytes == 131_072
    with pytest.raises(ConfigError, match="disable_hybrid_kv_cache_manager"):
        made([full, WINDOW], rules=VLLM_0_17, **OFF)  # block sizes stay 32 and 16 there


def test_replicated_windows_join_replicated_full_layers() -> None:
    full, window = (replace(spec, dcp_sharded=False) for spec in (FULL, WINDOW))
    limits = replace(LIMITS, dcp=2)
    result = made([full, window], rules=VLLM_0_33, limits=limits, **OFF)
    assert [group.spec.kind for group in result.groups] == ["full"]
    assert result.ranks[0].required_bytes == 512 * 2 * FULL.page_size_bytes


# --- ranks, memory -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("specs", "layout", "reference"),
    [
        ([FULL], "LBNHC", "ZeroDivisionError"),
        ([FULL], "LHBNC", "ValueError"),
        ([FULL, WINDOW], "LBHNC", "ValueError"),
        ([FULL, WINDOW], "BLNHC", "AssertionError"),
        ([FULL], "BHLNC", "AssertionError"),
    ],
)
def test_a_rank_without_layers_fails_in_its_own_way(
    specs: list[Any], layout: str, reference: str
) -> None:
    with pytest.raises(ConfigError, match="pipeline_parallel_size") as error:
        plan([layers(*specs), []], LIMITS, 400 * MIB, rules=VLLM_0_33, kv_cache_layout=layout)
    assert (error.value.reference_type, error.value.stage) == (reference, "configs")


def test_a_uniform_group_keeps_its_page_on_a_rank_without_its_layers() -> None:
    ranks = [layers(FULL, HALF), []]
    result = plan(ranks, LIMITS, 400 * MIB, rules=VLLM_0_33)
    both = [rank.config for rank in result.ranks]
    assert both[0].bytes_per_block == both[1].bytes_per_block == 98_304
    assert both[1].groups[0].layer_names == ()
    assert [len(config.tensors[0].pages) for config in both] == [2, 2]
    with pytest.raises(ConfigError, match="got a rank without layers") as error:
        plan(ranks, LIMITS, 400 * MIB, rules=VLLM_0_17)
    assert error.value.reference_type == "ZeroDivisionError"
    with pytest.raises(DoesNotFit, match="on rank 1, ") as short:
        plan(ranks, LIMITS, [400 * MIB, MIB], rules=VLLM_0_17)
    assert short.value.needed_bytes == (512 * 98_304, 512 * 98_304)


def test_memory_is_asked_before_anything_is_divided() -> None:
    for memory in (0, -1):
        with pytest.raises(DoesNotFit) as error:
            made([ENCODER], memory, rules=VLLM_0_17)
        assert error.value.longest_len is None


def test_heads_outside_layers_keep_every_head_of_every_layer_apart() -> None:
    """BHLNC: block b, head h, layer l at b * 8 * 3 * piece + h * 3 * piece + l * piece."""
    config = made([FULL] * 3, rules=VLLM_0_33, kv_cache_layout="BHLNC").ranks[0].config
    piece = FULL.page_size_bytes // 8
    for i, page in enumerate(config.tensors[0].pages):
        assert (page.offset, page.layer_stride) == (i * piece, piece)
        assert (page.block_stride, page.head_stride) == (24 * piece, 3 * piece)
    config = made([FULL] * 3, rules=VLLM_0_33, kv_cache_layout="LHBNC").ranks[0].config
    blocks = config.num_blocks
    for i, page in enumerate(config.tensors[0].pages):
        assert page.offset == i * blocks * 8 * piece
        assert (page.block_stride, page.head_stride) == (piece, blocks * piece)


def test_the_older_engine_reads_one_batch_and_the_newer_ones_all() -> None:
    limits = replace(LIMITS, max_concurrent_batches=2, max_num_batched_tokens=512)
    older, newer = (
        made([WINDOW], limits=limits, rules=rules, compared=()).ranks[0].required_bytes
        for rules in (VLLM_0_17, VLLM_0_33)
    )
    page = WINDOW.page_size_bytes
    assert (older, newer) == ((96 + 1) * page, (128 + 1) * page)


def test_prefill_context_ranks_and_mode_all_are_read_by_the_older_engine_alone() -> None:
    limits = replace(LIMITS, pcp=2, mamba_cache_mode="all")
    state = replace(STATE, block_size=1024)
    for rules, blocks in ((VLLM_0_17, 256), (VLLM_0_33, 512)):
        needed = made([FULL], limits=limits, rules=rules, compared=()).ranks[0].required_bytes
        assert needed == blocks * FULL.page_size_bytes
    for rules, blocks in ((VLLM_0_17, 8), (VLLM_0_33, 1)):
        needed = made([state], limits=limits, rules=rules, compared=()).ranks[0].required_bytes
        assert needed == blocks * STATE.page_size_bytes


def test_layers_that_do_not_divide_were_padded_to_whole_groups_before_0_12() -> None:
    """19 and 18 layers: 17 padded of 19 (89.47%) in groups of 18; groups of 19 pad one of 18."""
    told = {}
    for release in ("0.11.0", "0.12.0"):
        result = made([FULL] * 19 + [WINDOW] * 18, rules=rules_of(release))
        told[release] = [(pad.num_layers, round(pad.percent, 2)) for pad in result.padding]
    assert told == {"0.11.0": [(17, 89.47)], "0.12.0": [(1, 5.56)]}
