"""Caches by kind of layer, as files name the kinds, and states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvpipe.models._values import PROBE_HINT, is_whole
from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, unreadable

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
# Keys of older files: every how many layers a full one follows the sliding ones.
_EVERY = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")


def every_nth_full(config: Config, n: int) -> list[str]:
    """n - 1 sliding layers, then a full one, and so on; an unfinished round ends on sliding."""
    return [FULL if (i + 1) % n == 0 else SLIDING for i in range(config.num_layers)]


def layer_types(config: Config, derived: Sequence[str]) -> list[str]:
    """The file's layer_types where it has them, else the ones its class derives."""
    types = config.words("layer_types")
    types = list(derived) if types is None else types
    if len(types) != config.num_layers:
        expected = f"{config.num_layers} entries (num_hidden_layers)"
        raise unreadable("layer_types", expected, len(types))
    return types


def derived_types(config: Config) -> list[str]:
    """The layer_types of a file without any, as its class derives them: a round that it repeats,
    or one kind for all, by whether a window or a chunk is set."""
    layers = config.num_layers
    if config.pattern is None:
        expected = f"{layers} kinds of layers (its class derives them by a rule of its own)"
        raise unreadable("layer_types", expected, "nothing", PROBE_HINT)
    if config.pattern:
        every = next((n for key in _EVERY if (n := _raw_number(config, key))), 0)
        if every and set(config.pattern) == {FULL, SLIDING}:
            return every_nth_full(config, every)
        return [config.pattern[i % len(config.pattern)] for i in range(layers)]
    if config.number("sliding_window"):
        return [SLIDING] * layers
    return [CHUNKED if config.number("attention_chunk_size") else FULL] * layers


def _raw_number(config: Config, key: str) -> int:
    return config.number(key) if is_whole(config.raw.get(key)) else 0


def standard_caches(config: Config) -> list[CacheGeometry]:
    """K/V of every layer under the standard keys, each layer of its kind."""
    listed = config.words("layer_types") is not None
    return attention_caches(config, layer_types(config, () if listed else derived_types(config)))


def attention_cache(
    config: Config,
    layer: int,
    kind: str = FULL,
    *,
    prefix: str = "model.layers",
    name: str = "self_attn.attn",
    value_size: int | None = None,
) -> CacheGeometry:
    """The K/V cache of one layer. A window or chunk that is off, or spans the context, is full.

    value_size: of a head's V, where it is not K's.
    """
    config = of_layer(config, layer)
    spec, bound = _BOUNDS.get(kind, (None, None))
    if spec is None:
        raise unreadable("layer_types", f"one of {', '.join(_BOUNDS)}", f"'{kind}'")
    fields: dict[str, Any] = {
        "num_kv_heads": config.num_kv_heads,
        "head_size": config.head_size,
    }
    if value_size not in (None, config.head_size):
        fields["head_size_v"] = value_size
    size = config.number(bound) if bound else 0
    if bound and 0 < size < config.context_length:
        fields[bound] = size
    else:
        spec = "full"
    return CacheGeometry(name=f"{prefix}.{layer}.{name}", layer=layer, spec=spec, fields=fields)


def of_layer(config: Config, layer: int) -> Config:
    """The file as one layer reads it: per_layer_config overrides keys by layer index."""
    own = config.section("per_layer_config").section(str(layer)).raw
    return config.having(**own) if own else config


_BOUNDS = {
    FULL: ("full", None),
    SLIDING: ("sliding", "sliding_window"),
    CHUNKED: ("chunked", "attention_chunk_size"),
}


def attention_caches(
    config: Config,
    types: Iterable[str] | None = None,
    prefix: str = "model.layers",
    name: str = "self_attn.attn",
) -> list[CacheGeometry]:
    """One K/V cache a layer; without types, all of them full."""
    types = [FULL] * config.num_layers if types is None else types
    return [
        attention_cache(config, i, kind, prefix=prefix, name=name) for i, kind in enumerate(types)
    ]


def state_cache(
    layer: int,
    name: str,
    mamba_type: str,
    states: dict[str, list[int]],
    num_groups: int | None = None,
    prefix: str = "model.layers",
) -> CacheGeometry:
    """A fixed-size state; `states` maps a name to its shape, channels or heads first."""
    fields: dict[str, Any] = {
        "mamba_type": mamba_type,
        "states": [{"name": state, "shape": shape} for state, shape in states.items()],
    }
    if num_groups is not None:
        fields["num_groups"] = num_groups
    return CacheGeometry(name=f"{prefix}.{layer}.{name}", layer=layer, spec="mamba", fields=fields)
