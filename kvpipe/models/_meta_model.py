"""Building a transformers model on the meta device, and reading what two tokens leave in its cache.

The one module of this folder that imports torch and transformers; `_probe` imports it when asked.
Eager attention and bfloat16, since masks and experts of other kinds do not work on meta tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
import transformers
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvpipe.models._probe import Probed, ProbedLayer

_STATES = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}
_KINDS = {
    "full_attention": "full",
    "hybrid": "full",
    "indexed_attention": "full",
    "sliding_attention": "sliding",
    "hybrid_sliding": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "conv": "state",
    "dummy": "none",
}
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
_FEED_FORWARDS = ("FFN", "MoE", "MLP", "SparseMoeBlock")


def build_config(model_type: str, text: Mapping[str, Any]) -> Any:
    """The config object, with the class's defaults; raises what its class raises."""
    config = CONFIG_MAPPING[model_type].from_dict(deepcopy(dict(text)))
    config.pad_token_id = None  # GPT-2 and others would look for pad tokens in the data
    return config


def run(config: Any) -> Probed:
    """Build the model, run two tokens, read the cache."""
    with torch.device("meta"), torch.no_grad():
        model = _model_class(config).from_config(
            deepcopy(config), dtype=torch.bfloat16, attn_implementation="eager"
        )
        tokens = torch.zeros((1, 2), dtype=torch.long)
        cross: tuple[ProbedLayer, ...] = ()
        if config.is_encoder_decoder:
            layers, cross = _run_both(model, config, tokens)
        elif _generates(config):
            layers = _run_decoder(model, config, tokens)
        else:
            layers = (ProbedLayer(kind="none"),) * config.num_hidden_layers
    return Probed(
        layers=layers,
        cross=cross,
        shares=_shares(config),
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        config=config,
    )


def _generates(config: Any) -> bool:
    """A class for generation, and no masked language model (BERT), which must be told to decode.
    `is_decoder` alone is no sign: GPT-NeoX has it false, and decodes."""
    kind = type(config)
    encodes = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING and not getattr(
        config, "is_decoder", False
    )
    return kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING and not encodes


def _model_class(config: Any) -> Any:
    classes = [
        (modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING, transformers.AutoModelForSpeechSeq2Seq),
        (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, transformers.AutoModelForSeq2SeqLM),
    ]
    for mapping, found in classes if config.is_encoder_decoder else ():
        if type(config) in mapping:
            return found
    causal = _generates(config)
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModel


def _cache_argument(model: Any) -> str:
    """What this model and version of transformers call the cache."""
    names = signature(model.forward).parameters
    return next(name for name in _CACHE_ARGUMENTS if name in names)


def _run_decoder(model: Any, config: Any, tokens: Any) -> tuple[ProbedLayer, ...]:
    types, options = get_layer_types_and_kwargs(config)
    cache = transformers.DynamicCache(config=config)
    try:
        model(input_ids=tokens, **{_cache_argument(model): cache})
    except Exception:
        # Some expert loops look at values, which meta tensors have not: leave them out.
        cache = transformers.DynamicCache(config=config)
        _without_feed_forward(model)(input_ids=tokens, **{_cache_argument(model): cache})
    layers = tuple(
        _read_layer(layer, kind, option.get("sliding_window"))
        for layer, kind, option in zip(cache.layers, types, options, strict=True)
    )
    empty = all(not (layer.k_dim or layer.conv or layer.recurrent) for layer in layers)
    if empty:
        raise ValueError("its cache stayed empty")
    return layers


def _without_feed_forward(model: Any) -> Any:
    for module in model.modules():
        if type(module).__name__.endswith(_FEED_FORWARDS):
            module.forward = lambda hidden, *_, **__: hidden
    return model


def _run_both(
    model: Any, config: Any, tokens: Any
) -> tuple[tuple[ProbedLayer, ...], tuple[ProbedLayer, ...]]:
    """An encoder-decoder caches self and cross attention apart."""
    cache = transformers.EncoderDecoderCache(
        transformers.DynamicCache(), transformers.DynamicCache()
    )
    given = {"input_ids": tokens}
    if getattr(config, "num_mel_bins", None):
        frames = torch.zeros((1, config.num_mel_bins, 2 * config.max_source_positions))
        given = {"input_features": frames.to(torch.bfloat16)}
    model(decoder_input_ids=tokens, **given, **{_cache_argument(model): cache})
    parts = (cache.self_attention_cache, cache.cross_attention_cache)
    own, cross = (
        tuple(_read_layer(layer, "full_attention", None) for layer in part.layers) for part in parts
    )
    return own, cross


def _read_layer(layer: Any, layer_type: str, window: int | None) -> ProbedLayer:
    """Shapes of one cache layer; an unknown type of layer is an error, never full attention."""
    if layer_type not in _KINDS:
        raise ValueError(f"unknown kind of cache layer '{layer_type}'")
    probed = ProbedLayer(kind=_KINDS[layer_type])
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is not None and values is not None and keys.dim() == 4:
        probed = replace(
            probed,
            kv_heads=keys.shape[1],
            k_dim=keys.shape[-1],
            v_dim=values.shape[-1],
            window=window,
        )
    indexer = getattr(layer, "indexer_keys", None)
    if indexer is not None:
        probed = replace(probed, indexer=indexer.shape[-1])
    if layer_type in _STATES:
        conv, recurrent = _shapes(layer.conv_states), _shapes(layer.recurrent_states)
        probed = replace(probed, conv=conv, recurrent=recurrent)
    return probed


def _shapes(states: Mapping[int, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(state.shape[1:]) for state in states.values() if state is not None)


def _shares(config: Any) -> dict[int, int]:
    """Layers that reuse a cache read the storing layer of their type."""
    modes = getattr(config, "kv_sharing_modes", None) or []
    types = getattr(config, "layer_types", None) or []
    stores = {types[i]: i for i, mode in enumerate(modes) if mode == "store"}
    return {i: stores[types[i]] for i, mode in enumerate(modes) if mode == "reuse"}
