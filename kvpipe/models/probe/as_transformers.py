"""Needs of a model -> CacheLayers: the same specs an engine plans with, at transformers' sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.models.probe.needs import KVNeed, LayerNeeds
from kvpipe.models.probe.releases import require_transformers
from kvpipe.specs.base import CacheLayer, KVCacheSpec
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.cross import CrossAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec


def needs_of(model: Any) -> tuple[LayerNeeds, ...]:
    """Of a transformers model, or of a config (built on the meta device); ConfigError where
    transformers is missing, or the model keeps something that has no place."""
    require_transformers()
    from kvpipe.models.probe.build import skeleton
    from kvpipe.models.probe.read import model_needs

    is_config = not hasattr(model, "forward") and hasattr(model, "model_type")
    try:
        return model_needs(skeleton(model) if is_config else model)
    except KvpipeError:
        raise
    except Exception as error:  # a modeling file may fail in any way, and says so itself
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ConfigError(
            Problem(
                "model",
                "a model that runs two tokens with transformers' own cache",
                told,
                "transformers' own cache is needed for this model",
            )
        ) from error


def cache_layers(
    needs: Sequence[LayerNeeds], block_size: int, cache_dtype: str | None = None
) -> list[CacheLayer]:
    """0..3 CacheLayers a model layer. cache_dtype: storage of K and V (None: as the model's).
    ConfigError where a layer keeps what a bound cache cannot."""
    if problems := list(unbindable(needs)):
        raise ConfigError(problems)
    layers: list[CacheLayer] = []
    for need in needs:
        prefix = f"model.layers.{need.index}"
        if need.attention is not None:
            spec = attention_spec(need.attention, block_size, cache_dtype)
            layers.append(CacheLayer(name=f"{prefix}.self_attn.attn", spec=spec))
        if need.shares_with is not None:
            target = f"model.layers.{need.shares_with}.self_attn.attn"
            spec = next(layer.spec for layer in layers if layer.name == target)
            name = f"{prefix}.self_attn.attn"
            layers.append(CacheLayer(name=name, spec=spec, shares_with=target))
        if need.cross is not None:
            fields = _sizes(need.cross, block_size, cache_dtype)
            cross = CrossAttentionSpec(**fields)  # type: ignore[arg-type]
            layers.append(CacheLayer(name=f"{prefix}.encoder_attn.attn", spec=cross))
        if need.states:
            state = MambaSpec(block_size=block_size, states=need.states)
            layers.append(CacheLayer(name=f"{prefix}.mixer", spec=state))
    return layers


def unbindable(needs: Sequence[LayerNeeds]) -> Iterator[Problem]:
    """What a model keeps where a bound cache cannot put pages under it."""
    for need in needs:
        kept = [f"{state.name} in its own module" for state in need.in_modules]
        if need.indexer:
            kept.append(f"indexer_keys of {need.indexer} numbers a token")
        if kept:
            yield Problem(
                f"layer {need.index}",
                "a cache of keys, values or fixed-size states",
                ", ".join(kept),
                "transformers' own cache is needed for this model",
            )


def attention_spec(need: KVNeed, block_size: int, cache_dtype: str | None = None) -> KVCacheSpec:
    """The spec of one self attention."""
    if need.latent:
        return MLAAttentionSpec(
            block_size=block_size,
            head_size=need.head_size + need.head_size_v,
            dtype=cache_dtype or need.dtype,
        )
    sizes = _sizes(need, block_size, cache_dtype)
    if need.window is None:
        return FullAttentionSpec(**sizes)  # type: ignore[arg-type]
    if need.chunked:
        return ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=need.window)  # type: ignore[arg-type]
    return SlidingWindowSpec(**sizes, sliding_window=need.window)  # type: ignore[arg-type]


def _sizes(need: KVNeed, block_size: int, cache_dtype: str | None) -> dict[str, object]:
    return {
        "block_size": block_size,
        "num_kv_heads": need.num_heads,
        "head_size": need.head_size,
        "head_size_v": need.head_size_v,
        "dtype": cache_dtype or need.dtype,
    }
