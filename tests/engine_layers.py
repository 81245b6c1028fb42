"""A record's geometry -> one rank's cache layers, with the block sizes an engine would take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import lcm
from typing import Any

from engine_records import Reading, geometry, given, has_states

from kvpipe.specs.attention import AttentionSpec
from kvpipe.specs.base import CacheLayer, KVCacheSpec
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.cross import CrossAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.validation.state_blocks import share_pool


def layers_of(case: Mapping[str, Any], reading: Reading) -> list[CacheLayer]:
    """One rank's caches, with the block sizes an engine of that version takes."""
    shape, tp = geometry(case), given(case, "tp") or 1
    attention = list(_attention(case, shape, tp, reading))
    states = list(state_layers(shape, tp, reading))
    if states and attention:
        attention, states = _aligned(case, attention, states, reading)
    first = attention[0]
    if isinstance(first, AttentionSpec):  # a draft layer is like, but not equal to, the model's
        attention += [replace(first, dtype="float16")] * shape.get("draft_layers", 0)
    mtp = shape.get("mtp_layers", 0)
    full = [spec for spec in attention if spec.kind in ("full", "mla")]
    attention += full[:1] * mtp
    return [
        CacheLayer(name=f"model.layers.{i}.attn", spec=spec)
        for i, spec in enumerate([*attention, *states])
    ]


def _attention(
    case: Mapping[str, Any], shape: Mapping[str, Any], tp: int, reading: Reading
) -> Iterator[KVCacheSpec]:
    block = given(case, "block_size") or (64 if "kv_lora_rank" in shape else 16)
    if has_states(shape):
        block = 16  # replaced by the aligned size
    base: dict[str, Any] = {"block_size": block, "dtype": reading.kv_dtype}
    if "kv_lora_rank" in shape:
        width = shape["kv_lora_rank"] + shape["rope_dim"]
        count = shape.get("mla_layers") or shape["layers"]
        yield from [MLAAttentionSpec(head_size=width, **base)] * count
        return
    num_full, num_sliding = _layer_counts(shape)
    heads = shape.get("kv_heads_full", shape.get("kv_heads", 2))
    heads = shape.get("kv_heads_per_rank") or max(1, heads // tp)
    size = shape.get("head_dim_full", shape.get("head_dim", 128))
    yield from [FullAttentionSpec(num_kv_heads=heads, head_size=size, **base)] * num_full
    if shape.get("cross_attention"):
        yield from [CrossAttentionSpec(num_kv_heads=heads, head_size=size, **base)] * num_full
    if num_sliding:
        heads = max(1, shape.get("kv_heads_sliding", shape.get("kv_heads")) // tp)
        size = shape.get("head_dim_sliding", size)
        yield from [_window(shape, num_kv_heads=heads, head_size=size, **base)] * num_sliding


def _window(shape: Mapping[str, Any], **fields: Any) -> KVCacheSpec:
    if "chunked_local" in shape:
        return ChunkedLocalAttentionSpec(attention_chunk_size=shape["chunked_local"], **fields)
    return SlidingWindowSpec(sliding_window=shape["sliding_window"], **fields)


def _layer_counts(shape: Mapping[str, Any]) -> tuple[int, int]:
    """(layers that keep all tokens, layers with a window) that store a cache of their own."""
    if "own_full" in shape:
        return shape["own_full"], shape["own_sliding"]
    if "full_layers" in shape:
        return shape["full_layers"], shape.get("sliding_layers", 0)
    if "attn_layers" in shape:
        return shape["attn_layers"], 0
    layers = shape.get("layers", shape.get("decoder_layers", 0))
    if "pattern" in shape:
        windowed, _, full = shape["pattern"].partition(" : ")
        a, b = int(windowed.split(" ")[0]), int(full.split(" ")[0])
        return layers * b // (a + b), layers * a // (a + b)
    return layers, 0


def state_layers(shape: Mapping[str, Any], tp: int, reading: Reading) -> Iterator[KVCacheSpec]:
    def spec(conv: tuple[int, int], ssm: tuple[int, ...]) -> MambaSpec:
        states = (
            StateArray(name="conv", shape=conv, dtype="bfloat16"),
            StateArray(name="ssm", shape=ssm, dtype=reading.ssm_dtype),
        )
        return MambaSpec(
            block_size=2**31 - 1,
            states=states,
            mamba_cache_mode=reading.mamba_mode,
            num_speculative_blocks=reading.draft_tokens,
        )

    if "gdn_v_heads" in shape:
        v, k, dim = shape["gdn_v_heads"], shape["gdn_k_heads"], shape["gdn_head_dim"]
        # Drafted tokens are convolved before they are accepted: one more column each.
        conv = ((2 * k + v) * dim // tp, shape["conv_kernel"] - 1 + reading.draft_tokens)
        yield from [spec(conv, (v // tp, dim, dim))] * shape["gdn_layers"]
    elif "kda_heads" in shape:
        heads, dim = shape["kda_heads"] // tp, shape["kda_head_dim"]
        yield from [_kda(heads, dim)] * shape["kda_layers"]
    elif "mamba_heads" in shape:
        heads, dim, state = shape["mamba_heads"], shape["mamba_head_dim"], shape["ssm_state"]
        channels = heads * dim + 2 * shape["n_groups"] * state
        conv = (channels // tp, shape["conv_kernel"] - 1)
        yield from [spec(conv, (heads // tp, dim, state))] * shape["mamba2_layers"]
    elif "gdn_layers" in shape:  # sizes unknown: a stand-in, for padding only
        yield from [spec((64, 3), (4, 16, 16))] * shape["gdn_layers"]


def _kda(heads: int, dim: int) -> MambaSpec:
    """Three short convolutions of 4 taps and a recurrent state that is float32 always."""
    conv = [
        StateArray(name=f"conv_{n}", shape=(heads * dim, 3), dtype="bfloat16")
        for n in ("q", "k", "v")
    ]
    ssm = StateArray(name="ssm", shape=(heads, dim, dim), dtype="float32")
    return MambaSpec(block_size=2**31 - 1, states=(*conv, ssm))


def _aligned(
    case: Mapping[str, Any],
    attention: list[KVCacheSpec],
    states: list[KVCacheSpec],
    reading: Reading,
) -> tuple[list[KVCacheSpec], list[KVCacheSpec]]:
    """Attention blocks grown to hold a state, states padded to them, as the engine does."""
    alignment = lcm(*({"mla": 64}.get(spec.kind, 16) for spec in attention))
    pool = share_pool(
        attention,
        states,
        asked=given(case, "block_size"),
        alignment=alignment,
        mode=reading.mamba_mode,
        chunk_size=None,
    )
    grown = [spec.with_block_size(pool.block_size) for spec in attention]
    padded = [spec.with_padded_page(pool.page_size_bytes) for spec in states]
    return grown, padded
