"""kvpipe's own rules: what a plan promises holds, whatever the layers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpipe.cache.plan import Plan
from kvpipe.engines.base import EngineRules
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.notes import Hint, Note
from kvpipe.request.confdir import shipped_option
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.cross import CrossAttentionSpec
from kvpipe.specs.encoder_only import EncoderOnlyAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.runs import num_indices
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.specs.sliding_mla import SlidingWindowMLASpec
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.hybrid import HybridGrouping
from kvpipe.stages.grouping.planning import KVPIPE, VLLM_0_17, VLLM_0_33, plan

MIB = 2**20
FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
WINDOW = SlidingWindowSpec(
    block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16", sliding_window=1024
)
CHUNK = ChunkedLocalAttentionSpec(
    block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16", attention_chunk_size=512
)
CROSS = CrossAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
MLA = MLAAttentionSpec(block_size=16, head_size=576, dtype="bfloat16", cache_dtype="auto")
STATE = MambaSpec(
    block_size=8192,
    states=(
        StateArray(name="conv", shape=(8192, 3), dtype="bfloat16"),
        StateArray(name="ssm", shape=(8192, 16), dtype="bfloat16"),
    ),
)
ENCODER = EncoderOnlyAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
EQUAL = replace(KVPIPE, groups="equal")
RULES = {"slots": KVPIPE, "equal": EQUAL}
LIMITS = RequestLimits(max_model_len=8192, max_num_batched_tokens=2048, max_encoder_tokens=1500)


def layers(*specs: KVCacheSpec) -> list[CacheLayer]:
    return [CacheLayer(name=f"model.layers.{i}.attn", spec=spec) for i, spec in enumerate(specs)]


def made(specs: Iterable[KVCacheSpec], memory: int = 4096 * MIB, **more: Any) -> Plan:
    return plan(layers(*specs), more.pop("limits", LIMITS), memory, **more)


# --- capacity is truly sufficient ----------------------------------------------------------------
SPECS = [
    FULL,
    WINDOW,
    replace(WINDOW, sliding_window=100),
    replace(WINDOW, num_kv_heads=3),
    CHUNK,
    replace(CHUNK, attention_chunk_size=600),
    MLA,
    replace(MLA, head_size=132, dtype="uint8", cache_dtype=None),
    STATE,
    replace(STATE, num_speculative_blocks=2),
    CROSS,
    ENCODER,
]


def blocks_at(result: Plan, computed: int, new: int) -> int:
    return sum(
        num_indices(group.spec.resident(computed, new, result.limits)) for group in result.groups
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(SPECS), min_size=1, max_size=12),
    st.integers(1, 3000),
    st.integers(1, 600),
    st.sampled_from(["none", "align", "all"]),
    st.integers(1, 2000),
)
def test_no_step_of_a_request_takes_more_blocks_than_the_plan_has(
    specs: list[KVCacheSpec], length: int, batch: int, mode: str, spare: int
) -> None:
    limits = RequestLimits(
        max_model_len=length,
        max_num_batched_tokens=batch,
        max_encoder_tokens=100,
        mamba_cache_mode=mode,
    )
    try:
        result = plan(layers(*specs), limits, spare * MIB // 4, fit=True, compared=())
    except DoesNotFit:
        return
    length = result.limits.max_model_len
    usable = result.num_blocks - 1  # the null block is never handed out
    for computed in {*range(0, length, 97), *range(max(0, length - batch - 40), length)}:
        for new in {1, min(batch, length - computed)}:
            assert blocks_at(result, computed, new) <= usable, (computed, new)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(SPECS), min_size=1, max_size=8),
    st.integers(1, 400),
    st.sampled_from([KVPIPE, VLLM_0_17, VLLM_0_33]),
)
def test_the_longest_length_is_exact(
    specs: list[KVCacheSpec], quarter_mib: int, rules: EngineRules
) -> None:
    """One token more does not fit, that length does; found by trying, not by solving."""
    memory = quarter_mib * MIB // 4

    def fits(length: int) -> bool:
        try:
            made(specs, memory, limits=LIMITS.with_length(length), rules=rules, compared=())
        except DoesNotFit:
            return False
        return True

    try:
        fitted = made(specs, memory, rules=rules, fit=True, compared=()).limits.max_model_len
    except ConfigError:
        return  # this engine refuses such layers, at any length
    except DoesNotFit as error:
        assert error.longest_len is None
        assert not fits(1)
        return
    assert fits(fitted)
    assert fitted == LIMITS.max_model_len or not fits(fitted + 1)


# --- groups --------------------------------------------------------------------------------------
@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(SPECS), min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_the_order_of_layers_changes_no_number(
    specs: list[KVCacheSpec], shuffler: random.Random
) -> None:
    shuffled = specs.copy()
    shuffler.shuffle(shuffled)
    one, other = made(specs, compared=()), made(shuffled, compared=())
    assert one.num_blocks == other.num_blocks
    assert one.ranks[0].required_bytes == other.ranks[0].required_bytes
    assert sorted(len(g.layer_names) for g in one.groups) == sorted(
        len(g.layer_names) for g in other.groups
    )
    assert one.capacity is None or one.capacity.peak_bytes == other.capacity.peak_bytes  # type: ignore[union-attr]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(SPECS), min_size=1, max_size=12),
    st.sampled_from([KVPIPE, VLLM_0_33]),
    st.sampled_from(EngineRules.LAYOUTS),
)
def test_every_layer_has_pages_of_its_own_inside_its_tensor(
    specs: list[KVCacheSpec], rules: EngineRules, layout: str
) -> None:
    try:
        result = made(specs, rules=rules, kv_cache_layout=layout, compared=())
    except (ConfigError, DoesNotFit):
        return
    config = result.ranks[0].config
    names = [name for group in config.groups for name in group.layer_names]
    assert sorted(names) == sorted(layer.name for layer in layers(*specs))
    pages = [page for tensor in config.tensors for page in tensor.pages]
    assert sorted(page.layer for page in pages) == sorted(names)
    assert config.size_bytes <= result.ranks[0].available_bytes
    for group in config.groups:
        seen: set[tuple[int, int, int]] = set()
        for index, tensor in enumerate(config.tensors):
            for page in tensor.pages:
                if page.layer in group.layer_names:
                    runs = byte_runs(group.layer_spec(page.layer), page, config.num_blocks)
                    assert all(end <= tensor.size_bytes for _, _, end in runs)
                    located = {(index, start, end) for _, start, end in runs}
                    assert not seen & located
                    seen |= located
        spans = sorted(seen)
        for (one, _, end), (two, start, _) in zip(spans, spans[1:], strict=False):
            assert one != two or end <= start, "two layers of a group share bytes"


def byte_runs(spec: KVCacheSpec, page: Any, num_blocks: int) -> list[tuple[int, int, int]]:
    """(block, start, end) of every piece of the pages of a few blocks."""
    pieces = 1 if page.head_stride is None else max(a.num_heads for a in spec.page_arrays())
    size = spec.page_size_bytes // pieces
    return [
        (block, start, start + size)
        for block in {0, 1, num_blocks // 2, num_blocks - 1} & set(range(num_blocks))
        for piece in range(pieces)
        for start in [page.offset + block * page.block_stride + piece * (page.head_stride or 0)]
    ]


def test_an_indexer_keeps_its_own_page_beside_the_latent_cache() -> None:
    indexer = replace(MLA, head_size=132, dtype="uint8", cache_dtype=None)
    result = made([MLA, indexer] * 4)
    assert [group.spec.kind for group in result.groups] == ["uniform"]
    assert result.ranks[0].config.bytes_per_block == 4 * 16 * (576 * 2 + 132)
    same_word = made([MLA, replace(indexer, cache_dtype="auto")] * 4, rules=VLLM_0_17)
    assert same_word.ranks[0].config.bytes_per_block == 8 * 16 * 576 * 2  # the quirk, reproduced


def test_a_page_that_does_not_divide_is_padded_with_less_waste_than_padding_alone() -> None:
    result = made([STATE, *[FULL] * 3], rules=EQUAL)
    pages = {group.spec.kind: group.spec for group in result.groups}
    largest = STATE.page_size_bytes
    assert {spec.page_size_bytes for spec in pages.values()} == {largest}
    times = largest // FULL.page_size_bytes
    assert pages["full"].block_size == 16 * times
    assert pages["full"].real_page_size_bytes == FULL.page_size_bytes * times
    with pytest.raises(ConfigError, match="pages that divide the largest, 311,296 bytes") as error:
        made([STATE, *[FULL] * 3], rules=VLLM_0_17)
    assert error.value.reference_type == "NotImplementedError"


def test_encoder_layers_alone_are_planned_and_need_nothing() -> None:
    result = made([ENCODER] * 12)
    assert result.capacity is None
    assert result.ranks[0].required_bytes == 0
    assert result.printed[0].num_tokens is None
    assert [line.engine for line in result.printed if line.refused] == ["vllm_0_17", "vllm_0_33"]


def test_padding_layers_are_counted() -> None:
    result = made([FULL] * 10 + [WINDOW] * 52, rules=EQUAL)
    assert [len(group.layer_names) for group in result.groups] == [10, 9, 9, 9, 9, 8, 8]
    assert [(p.num_layers, round(p.percent, 2)) for p in result.padding] == [(8, 15.38)]


# --- capacity ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rules", "batch", "times", "steady_times"),
    [
        ("equal", 2048, 1.35, 1.02),
        ("equal", 8192, 2.31, 1.02),
        ("equal", 16384, 3.60, 1.02),
        ("slots", 8192, 2.12, 1.00),
    ],
)
def test_gemma_3_27b_holds_more_at_its_peak_than_its_logical_bytes(
    rules: str, batch: int, times: float, steady_times: float
) -> None:
    window, full = replace(WINDOW, num_kv_heads=16), replace(FULL, num_kv_heads=16)
    pattern = [full if i % 6 == 5 else window for i in range(62)]
    limits = RequestLimits(max_model_len=32768, max_num_batched_tokens=batch)
    result = made(pattern, 80 * 1024 * MIB, limits=limits, rules=RULES[rules])
    capacity = result.capacity
    assert capacity is not None
    logical = (10 * 32768 + 52 * 1024) * 2 * 16 * 128 * 2
    assert round(capacity.peak_bytes / logical, 2) == times
    assert round(capacity.steady_bytes / logical, 2) == steady_times
    for length in (1, 1000, 1024, 20000, 32768):
        blocks = sum(group.spec.steady_blocks(length, limits) for group in result.groups)
        steady = blocks * result.ranks[0].config.bytes_per_block
        assert steady <= capacity.bytes_fixed + capacity.bytes_per_token * length


def test_llama_2_13b_in_30_gib_matches_what_vllm_prints_and_what_is_usable() -> None:
    spec = replace(FULL, num_kv_heads=40)
    result = made([spec] * 40, 30 * 1024 * MIB, limits=LIMITS.with_length(4096))
    assert result.num_blocks == 2457
    printed = {line.engine: line.num_tokens for line in result.printed}
    assert printed == {"kvpipe": 39296, "vllm_0_17": 39312, "vllm_0_33": 39312}
    assert result.capacity is not None
    assert result.capacity.requests_at_peak == 2456 // 256


def test_a_window_fits_no_less_than_full_attention_and_a_note_says_what_would_fit_more() -> None:
    limits = RequestLimits(max_model_len=131072, max_num_batched_tokens=8192)
    full = made([FULL] * 32, 1024 * MIB, limits=limits, fit=True)
    window = [replace(WINDOW, sliding_window=4096)] * 32
    result = made(window, 1024 * MIB, limits=limits, fit=True)
    assert full.limits.max_model_len == result.limits.max_model_len == 8176
    assert "with fewer all 131,072 tokens fit" in result.notes[0].text
    assert proposed(result.notes[0]) == [{"scheduler.max_num_batched_tokens": 2048}]
    small = replace(limits, max_num_batched_tokens=2048)
    helped = made(window, 1024 * MIB, limits=small, fit=True)
    assert (helped.limits.max_model_len, helped.notes) == (131072, ())


def proposed(note: Note) -> list[Mapping[str, Any]]:
    assert isinstance(note, Hint)
    return [proposal.changes for proposal in note.proposals]


def test_an_engine_that_counts_one_group_admits_what_can_never_be_scheduled() -> None:
    specs = [STATE, *[FULL] * 4, *[STATE] * 27]
    padded = [replace(s, page_size_padded=5 * 65536) if s is STATE else s for s in specs]
    result = made(padded, 60 * MIB, limits=LIMITS.with_length(262144), rules=VLLM_0_17)
    assert result.capacity is not None
    longest = result.capacity.longest_request
    assert longest < 262144
    assert f"a request beyond {longest:,} tokens can never be scheduled" in result.notes[0].text
    assert result.notes[0].is_warning
    with pytest.raises(DoesNotFit) as error:
        made(padded, 60 * MIB, limits=LIMITS.with_length(262144))
    assert error.value.longest_len == longest


def test_more_requests_than_fit_are_noted_and_fewer_are_not() -> None:
    result = made([FULL] * 4, 400 * MIB, max_num_seqs=4)
    assert [note.text for note in result.notes] == [
        "scheduler.max_num_seqs=4, but memory holds 3 requests of 8,192 tokens at their peak",
    ]
    assert made([FULL] * 4, 4096 * MIB, max_num_seqs=4).notes == ()


# --- ranks ---------------------------------------------------------------------------------------
def test_all_ranks_get_the_blocks_of_the_poorest_and_the_rest_is_reported() -> None:
    ranks = [layers(*[FULL] * 4), layers(*[FULL] * 4)]
    alone = plan(ranks[0], LIMITS, 400 * MIB)
    result = plan(ranks, LIMITS, [700 * MIB, 400 * MIB])
    assert result.num_blocks == alone.num_blocks
    assert [rank.config.num_blocks for rank in result.ranks] == [alone.num_blocks] * 2
    unused = 700 * MIB // (4 * 65536) * 4 * 65536 - alone.ranks[0].config.size_bytes
    assert [rank.stranded_bytes for rank in result.ranks] == [unused, 0]
    assert [(note.text, note.is_warning) for note in result.notes] == [
        ("unused, since every rank has the blocks of the poorest: rank 0 300.0 MiB", True),
    ]


def test_a_stage_keeps_every_group_and_a_stage_without_caches_limits_nothing() -> None:
    both = layers(FULL, FULL, WINDOW, WINDOW)
    result = plan([both[:2], both[2:], []], LIMITS, [400 * MIB, 500 * MIB, MIB])
    assert [[len(g.layer_names) for g in r.config.groups] for r in result.ranks] == [
        [2, 0],
        [0, 2],
        [0, 0],
    ]
    assert result.num_blocks == 400 * MIB // (2 * 65536)
    assert result.ranks[2].config.tensors == ()
    with pytest.raises(ConfigError, match="a rank without any; use fewer stages") as error:
        plan([both[:2], both[2:], []], LIMITS, 400 * MIB, rules=VLLM_0_17)
    assert error.value.reference_type == "AssertionError"


def test_a_rank_that_is_too_small_is_named() -> None:
    ranks = [layers(*[FULL] * 4), layers(*[FULL] * 4)]
    with pytest.raises(
        DoesNotFit, match=r"on rank 1, 40 fit \(10.0 MiB\)\. Lower it to 624$"
    ) as error:
        plan(ranks, LIMITS, [700 * MIB, 10 * MIB])
    assert error.value.needed_bytes == (128 * MIB + 4 * 65536,) * 2
    assert error.value.null_block_bytes == (4 * 65536,) * 2
    assert error.value.available_bytes == (700 * MIB, 10 * MIB)
    assert plan(ranks, LIMITS.with_length(624), [700 * MIB, 10 * MIB]).num_blocks == 40


def test_no_layers_make_an_empty_plan() -> None:
    result = plan([[]], LIMITS, 0)
    assert (result.num_blocks, result.groups, result.capacity) == (1, (), None)


# --- sharing -------------------------------------------------------------------------------------
def test_layers_that_share_store_nothing_and_are_listed() -> None:
    stored = layers(*[FULL] * 4)
    sharing = [
        CacheLayer(name=f"shared.{i}", spec=FULL, shares_with=stored[i % 4].name) for i in range(6)
    ]
    result = plan([*stored, *sharing], LIMITS, 400 * MIB)
    assert result.shared_layers == tuple((s.name, s.shares_with) for s in sharing)
    assert result.ranks == plan(stored, LIMITS, 400 * MIB).ranks


def test_a_target_must_store_a_cache_itself() -> None:
    chain = [
        *layers(FULL),
        CacheLayer(name="b", spec=FULL, shares_with="model.layers.0.attn"),
        CacheLayer(name="c", spec=FULL, shares_with="b"),
        CacheLayer(name="d", spec=FULL, shares_with="nowhere"),
    ]
    with pytest.raises(
        ConfigError, match="for c to share, got 'b'\n.*for d to share, got 'nowhere'"
    ):
        plan(chain, LIMITS, 400 * MIB)


# --- too little memory, and what helps -----------------------------------------------------------
def test_the_message_gives_needed_available_longest_and_knobs() -> None:
    with pytest.raises(DoesNotFit) as error:
        made([FULL] * 4, 10 * MIB)
    assert str(error.value) == (
        "scheduler.max_model_len: one request of 8,192 tokens needs 513 blocks (128.2 MiB, "
        "the null block included), 40 fit (10.0 MiB). Lower it to 624"
    )
    made([FULL] * 4, 10 * MIB, limits=LIMITS.with_length(624))
    (needed,) = error.value.needed_bytes
    made([FULL] * 4, needed)
    with pytest.raises(DoesNotFit):
        made([FULL] * 4, needed - 1)


def test_the_longest_length_is_the_longest_on_every_rank() -> None:
    ranks = [layers(*[FULL] * 2), layers(*[FULL] * 6)]
    with pytest.raises(DoesNotFit, match="Lower it to 112$") as error:
        plan(ranks, LIMITS, [2 * MIB, 3 * MIB])
    assert error.value.longest_len == 112
    plan(ranks, LIMITS.with_length(112), [2 * MIB, 3 * MIB])
    with pytest.raises(DoesNotFit, match="on rank 1, 0 fit .* No length fits") as error:
        plan(ranks, LIMITS, [2 * MIB, MIB // 4])
    assert error.value.longest_len is None


def test_advice_to_lower_the_batch_is_given_only_where_it_helps() -> None:
    limits = RequestLimits(max_model_len=131072, max_num_batched_tokens=8192)
    window = [replace(WINDOW, sliding_window=4096)] * 32
    with pytest.raises(DoesNotFit, match=r", or lower scheduler.max_num_batched_tokens to 2,048$"):
        made(window, 1024 * MIB, limits=limits)
    made(window, 1024 * MIB, limits=replace(limits, max_num_batched_tokens=2048))
    with pytest.raises(DoesNotFit, match=r", or lower scheduler.max_num_batched_tokens to 4,096$"):
        made(window, 1100 * MIB, limits=limits)
    with pytest.raises(DoesNotFit) as error:
        made(window, 64 * MIB, limits=limits)
    assert "max_num_batched_tokens" not in str(error.value)


@pytest.mark.parametrize("fit", [False, True])
@pytest.mark.parametrize("memory", [0, 65536])
def test_nothing_fits_is_said_as_such(memory: int, fit: bool) -> None:
    with pytest.raises(DoesNotFit, match="No length fits$") as error:
        made([FULL] * 4, memory, fit=fit)
    assert error.value.longest_len is None


def test_an_override_must_fit_and_then_decides() -> None:
    assert made([FULL] * 4, num_gpu_blocks_override=1000).num_blocks == 1000
    with pytest.raises(
        DoesNotFit,
        match=r"100,000 blocks need 24.4 GiB, 16,384 fit \(4.0 GiB\)$",
    ):
        made([FULL] * 4, num_gpu_blocks_override=100_000)
    with pytest.raises(DoesNotFit, match=r"100 fit .*Lower it to 1,584$"):
        made([FULL] * 4, num_gpu_blocks_override=100)
    assert made([FULL] * 4, num_gpu_blocks_override=100, fit=True).limits.max_model_len == 99 * 16


# --- wrong requests ------------------------------------------------------------------------------
def test_two_specs_under_one_name_are_refused() -> None:
    ranks = [layers(FULL), layers(replace(FULL, num_kv_heads=4))]
    with pytest.raises(ConfigError, match=r"one spec for model\.layers\.0\.attn.*num_kv_heads 4"):
        plan(ranks, LIMITS, 400 * MIB)
    with pytest.raises(ConfigError, match="one spec for model.layers.0.attn"):
        plan([*layers(FULL), *layers(WINDOW)], LIMITS, 400 * MIB)


def test_context_parallel_windows_are_refused_wherever_they_stand() -> None:
    limits = replace(LIMITS, dcp=2)
    for specs in ([WINDOW] * 4, [FULL, WINDOW], [WINDOW, FULL]):
        for rules in (KVPIPE, VLLM_0_17, VLLM_0_33):
            with pytest.raises(ConfigError, match="decode_context_parallel_size: expected 1"):
                made(specs, limits=limits, rules=rules)


def test_without_the_hybrid_manager_windows_join_the_full_layers_or_are_refused() -> None:
    off = {"disable_hybrid_kv_cache_manager": True}
    result = made([FULL, WINDOW, WINDOW], **off)
    assert [group.spec.kind for group in result.groups] == ["full"]
    assert result.groups[0].spec.bound == WINDOW.bound
    windows = [WINDOW, replace(WINDOW, sliding_window=64)]
    assert [g.spec.kind for g in made([FULL, *windows], **off).groups] == ["uniform"]
    with pytest.raises(ConfigError, match="disable_hybrid_kv_cache_manager: expected false"):
        made(windows, **off)
    with pytest.raises(ConfigError, match="two values of sliding_window in one group: 64 and 1024"):
        made([FULL, *windows], rules=VLLM_0_17, **off)
    latent = SlidingWindowMLASpec(block_size=16, head_size=576, dtype="bfloat16", sliding_window=64)
    with pytest.raises(ConfigError, match="true, but a sliding MLA cache cannot") as error:
        made([MLA, latent], rules=VLLM_0_33, **off)
    assert error.value.reference_type == "TypeError"


REFUSED: list[tuple[EngineRules, list[KVCacheSpec], dict[str, Any], str, str]] = [
    (
        VLLM_0_17,
        [ENCODER, replace(ENCODER, num_kv_heads=4)],
        {},
        "encoder-only",
        "NotImplementedError",
    ),
    (VLLM_0_17, [ENCODER], {}, "divides by them", "ZeroDivisionError"),
    (VLLM_0_17, [FULL], {"num_gpu_blocks_override": 0}, "got 0 blocks", "ZeroDivisionError"),
    (
        VLLM_0_17,
        [STATE, replace(FULL, page_size_padded=77824, num_kv_heads=4)],
        {},
        "larger blocks",
        "AssertionError",
    ),
    (VLLM_0_33, [FULL, ENCODER], {}, "plans encoder-only layers", "ValueError"),
    (VLLM_0_33, [STATE, MLA], {}, "an engine that pads mla pages", "NotImplementedError"),
    (
        VLLM_0_33,
        [STATE, FULL],
        {"kv_cache_layout": "LHBNC"},
        "layers and blocks outside heads",
        "AssertionError",
    ),
    (
        VLLM_0_33,
        [STATE, FULL],
        {"kv_cache_layout": "BHLNC"},
        "blocks outermost, then layers",
        "ValueError",
    ),
]


@pytest.mark.parametrize(("rules", "specs", "more", "message", "reference"), REFUSED)
def test_what_an_engine_refuses_is_said_in_one_line_with_a_way_out(
    rules: EngineRules, specs: list[KVCacheSpec], more: dict[str, Any], message: str, reference: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        made(specs, rules=rules, **more)
    assert error.value.reference_type == reference
    assert len(error.value.lines()) == 1
    assert error.value.problems[0].knob
    if "kv_cache_layout" not in more and "override" not in str(more):
        made(specs, rules=KVPIPE)  # engine=kvpipe is the way out, and works


def test_a_rank_or_a_layout_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="memory: expected one figure for each of 1 ranks, got 2"):
        plan(layers(FULL), LIMITS, [MIB, MIB])
    with pytest.raises(ConfigError, match="placement: .*got LBNCH; did you mean"):
        plan(layers(FULL), LIMITS, 400 * MIB, kv_cache_layout="LBNCH")


def test_the_stage_plugin_is_the_pure_function() -> None:
    request = GroupingRequest(
        ranks=(tuple(layers(FULL, WINDOW)),), limits=LIMITS, memory=(400 * MIB,), rules=KVPIPE
    )
    options = shipped_option("grouping", "hybrid")
    stage = HybridGrouping(HybridGrouping.Options(**options))
    assert stage.run(request) == plan(layers(FULL, WINDOW), LIMITS, 400 * MIB, compared=())


def test_the_worked_example_of_pool_is_what_is_planned() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
    assert spec.page_size_bytes == 16 * 2 * 8 * 128 * 2 == 65_536
    made = plan(
        [CacheLayer(name=f"layer.{i}", spec=spec) for i in range(32)],
        RequestLimits(max_model_len=8176, max_num_batched_tokens=2048),
        2**30,
    )
    assert made.ranks[0].config.bytes_per_block == 32 * 65_536 == 2_097_152
    assert made.num_blocks == 2**30 // 2_097_152 == 512
    assert made.capacity is not None and made.capacity.demands[0].steady_blocks == 511
    assert made.capacity.requests_steady == 1
