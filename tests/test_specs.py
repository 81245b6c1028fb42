"""What is particular to one kind of cache; what all of them owe is in test_spec_walk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from spec_walk import called

from kvpipe.errors import SpecError
from kvpipe.plugins import SPECS
from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import KVCacheSpec, RequestLimits, SpecContext
from kvpipe.specs.bounds import Bound, WindowConflict
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.cross import CrossAttentionSpec
from kvpipe.specs.encoder_only import EncoderOnlyAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.runs import indices, num_indices
from kvpipe.specs.sink import SinkFullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.specs.sliding_mla import SlidingWindowMLASpec
from kvpipe.specs.uniform import UniformTypeKVCacheSpecs

KV: dict[str, Any] = {"num_kv_heads": 2, "head_size": 3, "dtype": "bfloat16"}
CONTEXT = SpecContext(
    block_size=16,
    dtype="bfloat16",
    cache_dtype="bfloat16",
    model_dtype="bfloat16",
    conv_dtype="bfloat16",
    ssm_dtype="float32",
    max_model_len=8192,
)
STATES = [{"name": "conv", "shape": [10240, 3]}, {"name": "ssm", "shape": [128, 64, 128]}]
MAMBA = {"states": STATES, "mamba_type": "mamba2", "num_groups": 8}


def limits(length: int, batch: int, **more: Any) -> RequestLimits:
    return RequestLimits(max_model_len=length, max_num_batched_tokens=batch, **more)


def mamba(block_size: int, **more: Any) -> MambaSpec:
    state = StateArray(name="ssm", shape=(4, 2), dtype="float32")
    return MambaSpec(block_size=block_size, states=(state,), **more)


def steps(length: int, batch: int) -> Iterator[tuple[int, int]]:
    """(computed, new) of a request: its prompt in chunks of `batch`, then token by token."""
    for prompt in {1, length // 2, length - 1, length} - {0}:
        computed = 0
        while computed < prompt:
            new = min(batch, prompt - computed)
            yield computed, new
            computed += new
        while computed < length:
            yield computed, 1
            computed += 1


def any_step(length: int, batch: int) -> Iterator[tuple[int, int]]:
    """Every (computed, new) that a scheduler may choose, largest steps only."""
    for computed in range(length):
        yield computed, min(batch, length - computed)


def most_held(spec: KVCacheSpec, bounds: RequestLimits) -> int:
    """Blocks at the worst step of any request within the bounds."""
    walk = any_step(bounds.max_model_len, bounds.max_num_batched_tokens)
    return max(num_indices(spec.resident(c, n, bounds)) for c, n in walk)


@pytest.mark.parametrize("batch", range(1, 20))
def test_the_block_more_of_a_window_is_needed_by_some_window(batch: int) -> None:
    """ceil(held / block) + 1 cannot be lowered: for every batch some window needs all of it."""
    slack = []
    for window in range(2, 10):
        spec = SlidingWindowSpec(block_size=4, sliding_window=window, **KV)
        bounds = limits(160, batch)
        slack.append(spec.max_blocks(bounds) - most_held(spec, bounds))
    assert (min(slack), max(slack)) == (0, 1)


def test_an_unaligned_chunk_can_need_one_block_more_than_engines_reserve() -> None:
    spec = ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=24, **KV)
    short = [
        batch
        for batch in range(1, 65)
        if most_held(spec, limits(200, batch)) > spec.max_blocks(limits(200, batch))
    ]
    assert short, "peak_blocks would be needless"
    for batch in short:
        assert most_held(spec, limits(200, batch)) == spec.peak_blocks(limits(200, batch))


def states_alive(computed: int, new: int, size: int, mode: str) -> set[int]:
    """Blocks whose state a step reads (that of the last token) or writes."""
    last = (computed + new - 1) // size
    written = {t // size for t in range(computed, computed + new)} if mode == "all" else {last}
    return written | ({(computed - 1) // size} if computed else set())


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("speculative", [0, 1, 3])
@pytest.mark.parametrize("mode", ["align", "all"])
def test_states_are_held_while_a_step_reads_or_writes_them(
    mode: str, speculative: int, size: int
) -> None:
    spec = mamba(size, num_speculative_blocks=speculative if mode == "align" else 0)
    for batch in (1, 3, 16, 40):
        bounds = limits(64, batch, mamba_cache_mode=mode)
        for computed, new in steps(64, batch):
            held = set(indices(spec.resident(computed, new, bounds)))
            alive = states_alive(computed, new, size, mode)
            last = max(alive)
            extra = set(range(last + 1, last + 1 + spec.num_speculative_blocks))
            assert alive <= held <= alive | extra, (computed, new)
            assert held == alive | extra or last - min(alive) > 1, "only a skip speculates not"
        assert most_held(spec, bounds) <= spec.max_blocks(bounds)


@pytest.mark.parametrize("mode", ["align", "all"])
def test_a_decoding_request_holds_one_state_but_for_the_step_that_passes_a_boundary(
    mode: str,
) -> None:
    spec, bounds = mamba(4), limits(64, 8, mamba_cache_mode=mode)
    held = [spec.steady_blocks(n, bounds) for n in range(2, 65)]
    assert held == [2 if n % 4 == 1 else 1 for n in range(2, 65)]
    fixed, slope = spec.steady_cost(bounds)
    assert (fixed, slope) == (2, 0.0)


def test_without_prefix_caching_one_state_and_the_speculative_ones_run() -> None:
    for speculative in (0, 2):
        spec, bounds = mamba(4096, num_speculative_blocks=speculative), limits(4096, 512)
        assert most_held(spec, bounds) == spec.max_blocks(bounds) == 1 + speculative


def test_cross_attention_holds_the_encoder_and_nothing_of_the_decoder() -> None:
    spec = CrossAttentionSpec(block_size=16, **KV)
    bounds = limits(448, 64, max_encoder_tokens=1500)
    assert most_held(spec, bounds) == spec.max_blocks(bounds) == 94
    assert spec.steady_blocks(3, bounds) == 94
    assert spec.hit_length([True] * 20) == 0


def test_an_encoder_holds_nothing() -> None:
    spec, bounds = EncoderOnlyAttentionSpec(block_size=16, **KV), limits(512, 512)
    assert most_held(spec, bounds) == spec.max_blocks(bounds) == spec.steady_blocks(9, bounds) == 0
    assert spec.hit_length([True] * 20) == 0


def test_the_last_cached_state_is_enough_for_a_hit() -> None:
    spec = mamba(16)
    assert spec.hit_length([False, True, False]) == 32
    assert spec.hit_length([True, False, False]) == 16
    assert spec.hit_length([False] * 3) == spec.hit_length([]) == 0


def test_context_parallel_ranks_share_the_tokens_unless_the_cache_is_replicated() -> None:
    bounds = limits(1000, 64, dcp=4)
    spec = FullAttentionSpec(block_size=16, **KV)
    assert spec.max_blocks(bounds) == 16  # ceil(ceil(1000 / 4) / 16)
    assert replace(spec, dcp_sharded=False).max_blocks(bounds) == 63
    window = SlidingWindowSpec(block_size=16, sliding_window=64, **KV)
    with pytest.raises(SpecError, match="cannot be split over 4 context ranks"):
        window.max_blocks(bounds)
    assert replace(window, dcp_sharded=False).max_blocks(bounds) == 9


# --- bytes ---------------------------------------------------------------------------------------
PRODUCTS = [
    (
        FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16"),
        16 * 8 * 256 * 2,
    ),
    (
        FullAttentionSpec(
            block_size=3, num_kv_heads=5, head_size=96, head_size_v=80, dtype="float32"
        ),
        3 * 5 * 176 * 4,
    ),
    (
        SlidingWindowSpec(
            block_size=17, num_kv_heads=1, head_size=80, dtype="fp8_e4m3", sliding_window=9
        ),
        17 * 160,
    ),
    (MLAAttentionSpec(block_size=64, head_size=576, dtype="bfloat16"), 64 * 576 * 2),
    (
        MLAAttentionSpec(block_size=64, head_size=576, dtype="uint8", cache_dtype="fp8_ds_mla"),
        64 * 656,
    ),
    (
        MLAAttentionSpec(block_size=256, head_size=512, dtype="bfloat16", tokens_per_state=4),
        64 * 1024,
    ),
    (mamba(77), 4 * 2 * 4),
]


def geometry_of(spec: AttentionSpec) -> dict[str, Any]:
    """What a model file says of a cache like this one: the fields that it must give."""
    latent = () if spec.is_latent else ("num_kv_heads",)
    return {name: getattr(spec, name) for name in (*latent, "head_size", *type(spec).more_fields)}


ATTENTION = [
    spec
    for name in SPECS.names()
    for spec in SPECS.get(name).examples()[:1]
    if isinstance(spec, AttentionSpec)
]


@pytest.mark.parametrize("spec", ATTENTION, ids=called)
def test_a_model_file_gives_each_kind_its_fields(spec: AttentionSpec) -> None:
    kind, geometry = spec.kind, geometry_of(spec)
    read = SPECS.get(kind).from_geometry(geometry, CONTEXT)
    assert read.kind == kind and geometry_of(read) == geometry
    with pytest.raises(SpecError, match=f"{kind}: unknown field 'head_sise'"):
        SPECS.get(kind).from_geometry(geometry | {"head_sise": 3}, CONTEXT)
    for name in geometry:
        fewer = {k: v for k, v in geometry.items() if k != name}
        with pytest.raises(SpecError, match=f"missing field '{name}'"):
            SPECS.get(kind).from_geometry(fewer, CONTEXT)
        with pytest.raises(SpecError, match=f"{name} must be a whole number of at least 1"):
            SPECS.get(kind).from_geometry(geometry | {name: 0}, CONTEXT)


def test_a_model_file_gives_a_state_its_shapes() -> None:
    assert SPECS.get("mamba").from_geometry(MAMBA, CONTEXT).kind == "mamba"
    with pytest.raises(SpecError, match="mamba: unknown field 'head_sise'"):
        SPECS.get("mamba").from_geometry(MAMBA | {"head_sise": 3}, CONTEXT)
    with pytest.raises(SpecError, match="missing field 'states'"):
        SPECS.get("mamba").from_geometry({"mamba_type": "mamba2"}, CONTEXT)


@pytest.mark.parametrize(("spec", "expected"), PRODUCTS, ids=[called(s) for s, _ in PRODUCTS])
def test_a_page_is_the_product_of_its_geometry(spec: KVCacheSpec, expected: int) -> None:
    assert spec.page_size_bytes == spec.real_page_size_bytes == expected
    assert sum(a.num_bytes(spec.block_size) for a in spec.page_arrays()) == expected
    padded = spec.with_padded_page(expected + 64)
    assert (padded.page_size_bytes, padded.real_page_size_bytes) == (expected + 64, expected)
    with pytest.raises(SpecError, match=f"at least the real {expected:,} bytes"):
        spec.with_padded_page(expected - 1)


def test_an_aligned_page_is_padded_again_when_its_block_size_changes() -> None:
    spec = SlidingWindowMLASpec(
        block_size=64, head_size=512, dtype="bfloat16", sliding_window=128, alignment=576
    )
    assert (spec.real_page_size_bytes, spec.page_size_bytes) == (65536, 65664)
    assert spec.with_block_size(128).page_size_bytes == -(-131072 // 576) * 576


def test_blocks_grow_with_attention_and_not_with_states() -> None:
    full = FullAttentionSpec(block_size=16, **KV)
    assert full.with_block_size(48).page_size_bytes == 3 * full.page_size_bytes
    assert mamba(16).with_block_size(48).page_size_bytes == mamba(16).page_size_bytes


def test_a_packed_latent_row_has_656_bytes_and_its_indexer_keeps_its_own_dtype() -> None:
    packed = replace(CONTEXT, cache_dtype="fp8_ds_mla", dtype="uint8")
    mla = SPECS.get("mla")
    assert mla.from_geometry({"head_size": 576}, packed).page_size_bytes == 16 * 656
    indexer = mla.from_geometry({"head_size": 132, "dtype": "uint8"}, packed)
    assert (indexer.page_size_bytes, indexer.cache_dtype) == (16 * 132, None)


def test_states_are_stored_in_the_dtypes_the_run_names() -> None:
    spec = SPECS.get("mamba").from_geometry(MAMBA, CONTEXT)
    assert [state.dtype for state in spec.states] == ["bfloat16", "float32"]
    assert spec.page_size_bytes == 10240 * 3 * 2 + prod((128, 64, 128)) * 4
    own = {"states": [{"name": "conv", "shape": [8, 3], "dtype": "float16"}]}
    assert SPECS.get("mamba").from_geometry(own, CONTEXT).states[0].dtype == "float16"
    assert spec.block_size == 8192  # one state for the whole context, unless set
    with pytest.raises(SpecError, match="dtype must be one of"):
        SPECS.get("mamba").from_geometry(
            {"states": [{"name": "conv", "shape": [8], "dtype": "int4"}]}, CONTEXT
        )


# --- tensor parallelism --------------------------------------------------------------------------
def test_heads_are_split_then_replicated() -> None:
    spec = FullAttentionSpec(block_size=16, **(KV | {"num_kv_heads": 8}))
    assert [spec.shard(tp).num_kv_heads for tp in (1, 2, 8, 16)] == [8, 4, 1, 1]
    with pytest.raises(
        SpecError, match=r"one of 1, 2, 4, 8, 16, 24, .*8 KV heads are split or replicated\), got 3"
    ):
        spec.shard(3)


def test_a_latent_row_is_whole_on_every_rank() -> None:
    spec = MLAAttentionSpec(block_size=16, head_size=576, dtype="bfloat16")
    assert spec.shard(8) == spec


def test_convolution_groups_are_replicated_when_ranks_exceed_them() -> None:
    spec = SPECS.get("mamba").from_geometry(MAMBA, CONTEXT)  # 8192 + 2 * 8 * 128
    per_group = 2 * 128
    for tp in (1, 2, 8, 16):
        conv, ssm = spec.shard(tp).states
        assert conv.shape == (8192 // tp + max(1, 8 // tp) * per_group, 3)
        assert ssm.shape == (128 // tp, 64, 128)
    with pytest.raises(
        SpecError, match=r"one of 1, 2, 4, 8, 16, .*8192 rows and 8 groups are split\), got 3"
    ):
        spec.shard(3)
    with pytest.raises(SpecError, match="3 groups do not fit"):
        SPECS.get("mamba").from_geometry(MAMBA | {"num_groups": 3}, CONTEXT)


# --- merging and what if -------------------------------------------------------------------------
def test_full_layers_share_one_remembered_window_but_not_two() -> None:
    plain = FullAttentionSpec(block_size=16, **KV)
    small, large = (replace(plain, remembers=Bound(sliding_window=w)) for w in (64, 128))
    assert plain.merge([small, plain]).bound == Bound(sliding_window=64)
    with pytest.raises(
        WindowConflict, match="two values of sliding_window in one group: 64 and 128"
    ):
        plain.merge([small, large])
    chunk = replace(plain, remembers=Bound(attention_chunk_size=64))
    with pytest.raises(
        SpecError, match="remembers sliding_window next to one that remembers attention_chunk"
    ):
        small.merge([chunk])


def test_layers_merge_only_when_every_field_is_equal_or_not_compared() -> None:
    plain = FullAttentionSpec(block_size=16, **KV)
    wider = FullAttentionSpec(block_size=16, head_size_v=8, **KV)
    sink = SinkFullAttentionSpec(block_size=16, sink_len=4, **KV)
    with pytest.raises(SpecError, match="head_size_v 8 next to 3"):
        plain.merge([wider])
    assert plain.merge([wider], frozenset({"head_size_v"})) == plain
    with pytest.raises(SpecError, match="sink next to full"):
        plain.merge([sink])
    assert plain.merge([sink], frozenset({"kind", "sink_len"})) == plain
    assert sink.merge([plain], frozenset({"kind", "sink_len"})) == sink
    with pytest.raises(SpecError, match="mla next to full"):
        plain.merge(
            [MLAAttentionSpec(block_size=16, head_size=3, dtype="bfloat16")], frozenset({"kind"})
        )


def what_if(kind: str, spec: KVCacheSpec, **options: int) -> KVCacheSpec:
    result: KVCacheSpec = SPECS.get(kind).what_if(spec, options)
    return result


def test_a_what_if_window_never_widens_a_native_one() -> None:
    full = FullAttentionSpec(block_size=16, **KV)
    native = SlidingWindowSpec(block_size=16, sliding_window=64, **KV)
    window = SlidingWindowSpec(block_size=16, sliding_window=4096, **KV)
    for spec in (
        full,
        SinkFullAttentionSpec(block_size=16, **KV),
        EncoderOnlyAttentionSpec(block_size=16, **KV),
    ):
        assert what_if("sliding", spec, sliding_window=4096) == window
    assert what_if("sliding", native, sliding_window=4096) == native
    assert what_if("sliding", native, sliding_window=32).sliding_window == 32  # type: ignore[attr-defined]
    for spec in (mamba(16), CrossAttentionSpec(block_size=16, **KV)):
        assert what_if("sliding", spec, sliding_window=4096) is spec
        assert what_if("full", spec) is spec
    with pytest.raises(SpecError, match="attention=sliding needs sliding_window, in tokens"):
        what_if("sliding", full)


def test_a_latent_cache_becomes_a_window_of_latent_rows_and_back() -> None:
    mla = MLAAttentionSpec(block_size=16, head_size=576, dtype="bfloat16", cache_dtype="auto")
    window = what_if("sliding", mla, sliding_window=128)
    assert isinstance(window, SlidingWindowMLASpec)
    assert window.page_size_bytes == mla.page_size_bytes
    assert what_if("full", window) == mla


def test_chunks_and_full_attention_are_what_ifs_too() -> None:
    full = FullAttentionSpec(block_size=16, **KV)
    chunked = what_if("chunked", full, attention_chunk_size=64)
    assert isinstance(chunked, ChunkedLocalAttentionSpec)
    assert what_if("chunked", chunked, attention_chunk_size=128) == chunked
    assert what_if("full", chunked) == full
    assert what_if("full", SlidingWindowSpec(block_size=16, sliding_window=8, **KV)) == full
    with pytest.raises(SpecError, match="attention=cross is not offered as a what-if"):
        what_if("cross", full)


def test_a_promoted_window_keeps_every_token_and_remembers_its_size() -> None:
    native = SlidingWindowSpec(block_size=16, sliding_window=64, **KV)
    promoted = native.promoted()
    assert isinstance(promoted, FullAttentionSpec)
    assert (promoted.bound, promoted.max_blocks(limits(160, 8))) == (native.bound, 10)
    latent = SlidingWindowMLASpec(block_size=16, sliding_window=64, head_size=8, dtype="uint8")
    with pytest.raises(SpecError, match="sliding MLA cache cannot be turned"):
        latent.promoted()


def test_a_uniform_group_sums_pages_and_takes_the_hungriest_layer() -> None:
    small = FullAttentionSpec(block_size=16, **KV)
    large = replace(small, num_kv_heads=4, dcp_sharded=False)
    group = UniformTypeKVCacheSpecs(block_size=16, layers=(("a", small), ("b", large)))
    assert group.page_size_bytes == small.page_size_bytes + large.page_size_bytes
    assert group.max_blocks(limits(160, 8, dcp=2)) == 10
    assert group.of_layer("b") is large
    assert group.for_layers(["a"]).page_size_bytes == small.page_size_bytes
    assert group.for_layers([]) is group
    with pytest.raises(SpecError, match="uniform is what grouping makes"):
        UniformTypeKVCacheSpecs.from_geometry({}, CONTEXT)


BAD: Sequence[tuple[type[KVCacheSpec], dict[str, Any], str]] = [
    (FullAttentionSpec, KV | {"block_size": 0}, "block_size must be at least 1 token, got 0"),
    (FullAttentionSpec, KV | {"block_size": 16, "head_size": 0}, "head_size must be at least 1"),
    (
        FullAttentionSpec,
        KV | {"block_size": 16, "dtype": "int4"},
        "dtype must be one of .* got 'int4'",
    ),
    (FullAttentionSpec, KV | {"block_size": 6, "tokens_per_state": 4}, "multiple of the 4 tokens"),
    (
        SlidingWindowSpec,
        KV | {"block_size": 16, "sliding_window": 0},
        "sliding_window must be at least 1",
    ),
    (
        ChunkedLocalAttentionSpec,
        KV | {"block_size": 16, "attention_chunk_size": 0},
        "at least 1 token",
    ),
    (MambaSpec, {"block_size": 16, "states": ()}, "needs at least one state"),
    (
        MambaSpec,
        {"block_size": 16, "states": mamba(1).states, "mamba_cache_mode": "alin"},
        "did you mean 'align'",
    ),
]


@pytest.mark.parametrize(("spec", "fields", "message"), BAD)
def test_a_spec_checks_its_own_ranges(
    spec: type[KVCacheSpec], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        spec(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": ()},
        {"shape": (0,)},
        {"dtype": "int4"},
        {"group_rows": 4},
        {"group_rows": 9, "num_groups": 1},
    ],
)
def test_a_state_checks_its_own_ranges(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="state conv: "):
        StateArray(**({"name": "conv", "shape": (8,), "dtype": "float32"} | fields))
