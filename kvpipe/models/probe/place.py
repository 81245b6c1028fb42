"""One layer of a transformers cache -> what it keeps, each tensor under a name that is known here.

B batch, H KV heads, T tokens, D head size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.probe.needs import KVNeed, LayerNeeds, dtype_name, state_name
from kvpipe.specs.mamba import StateArray

_STATES = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_KINDS = _STATES | {
    "full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "dummy",
}  # fmt: skip
# Everything a layer of these kinds holds; constants of the implementation among them.
_PLACED = {"keys", "values", "indexer_keys", "indexer_position_ids", "_sliding_window_tensor"}
_PLACED_STATES = {"conv_states": "conv", "recurrent_states": "ssm"}


def layer_needs(
    own: Sequence[Any],
    cross: Sequence[Any] | None,
    types: Sequence[str],
    windows: Sequence[int | None],
    config: Any,
) -> tuple[LayerNeeds, ...]:
    """own, cross: layers of the caches. types: transformers' word for each, windows: its tokens.
    ConfigError with every kind and tensor that has no place."""
    problems = [
        Problem(
            f"layer {index} of {config.model_type}",
            "a cache of keys, values or fixed-size states",
            unknown,
            "transformers' own cache is needed for this model",
        )
        for index, (layer, kind) in enumerate(zip(own, types, strict=True))
        if (unknown := _unknown(layer, kind))
    ]
    if problems:
        raise ConfigError(problems)
    parts = _per_layer(config, len(own))
    needs = []
    for index, layer in enumerate(own):
        states = _states(layer)
        needs.append(
            LayerNeeds(
                index=index,
                attention=_kv(layer, parts[index], types[index], windows[index]),
                cross=_kv(cross[index], parts[index]) if cross and index < len(cross) else None,
                states=states,
                num_states=int(getattr(layer, "number_of_states", 0)) if states else 0,
                indexer=_width(getattr(layer, "indexer_keys", None)),
            )
        )
    return _with_sharing(needs, config)


def _unknown(layer: Any, kind: str) -> str:
    """What of this layer has no place, in words."""
    name = type(layer).__name__
    if kind not in _KINDS:
        return f"the kind '{kind}' ({name})"
    names = [each for each, value in vars(layer).items() if each not in _PLACED and _holds(value)]
    names = [each for each in names if each not in _PLACED_STATES or kind not in _STATES]
    for each in ("keys", "values"):
        value = getattr(layer, each, None)
        if value is not None and value.dim() != 4 and value.numel():
            names.append(f"{each} of {value.dim()} axes")
    return f"{name} with {', '.join(names)}" if names else ""


def _holds(value: Any) -> bool:
    """A tensor, or a collection with one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_holds, value))
    return isinstance(value, torch.Tensor)


def _per_layer(config: Any, num_layers: int) -> Sequence[Any]:
    """Sizes that differ from layer to layer stand in configs of their own."""
    parts = list(getattr(config, "per_layer_config", None) or ())
    return parts if len(parts) == num_layers else [config] * num_layers


def _kv(layer: Any, config: Any, kind: str = "", window: int | None = None) -> KVNeed | None:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None or keys.dim() != 4:
        return None
    rank = getattr(config, "kv_lora_rank", None)
    return KVNeed(
        num_heads=keys.shape[1],
        head_size=keys.shape[3],
        head_size_v=values.shape[3],
        dtype=dtype_name(keys.dtype),
        window=window,
        chunked=kind == "chunked_attention",
        latent=rank is not None and (keys.shape[1], keys.shape[3]) == (1, rank),
    )


def _states(layer: Any) -> tuple[StateArray, ...]:
    return tuple(
        _state(state_name(name, number), tensor)
        for held, name in _PLACED_STATES.items()
        for number, tensor in getattr(layer, held, {}).items()
        if tensor is not None
    )


def _state(name: str, tensor: Any) -> StateArray:
    return StateArray(name=name, shape=tuple(tensor.shape[1:]), dtype=dtype_name(tensor.dtype))


def _width(tensor: Any) -> int:
    return 0 if tensor is None else int(tensor.shape[-1])


def _with_sharing(needs: Sequence[LayerNeeds], config: Any) -> tuple[LayerNeeds, ...]:
    """A layer whose mode is `reuse` reads the K/V of the `store` layer of its own type."""
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is None:
        return tuple(needs)
    store = {config.layer_types[i]: i for i, mode in enumerate(modes) if mode == "store"}
    return tuple(
        replace(need, shares_with=store[config.layer_types[need.index]])
        if modes[need.index] == "reuse"
        else need
        for need in needs
    )


def with_module_states(
    needs: Sequence[LayerNeeds], found: Mapping[str, Any]
) -> tuple[LayerNeeds, ...]:
    """found: dotted name -> tensor [B, ...] that a module kept (recurrent_gemma)."""
    states: dict[int, list[StateArray]] = {}
    for path, tensor in found.items():
        layer = re.search(r"\.(\d+)\.", f".{path}")
        index = int(layer[1]) if layer else -1
        states.setdefault(index, []).append(_state(path.rpartition(".")[2], tensor))
    if lost := [path for path in found if not re.search(r"\.\d+\.", f".{path}")]:
        raise ConfigError(Problem("model", "states that belong to a layer", lost[0]))
    return tuple(replace(need, in_modules=tuple(states.get(need.index, ()))) for need in needs)
