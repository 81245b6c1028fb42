"""Running two tokens through a model with its own cache, and reading what they leave in it.

Whatever is kept has to be planned: a tensor that this file cannot place, a layer that kept nothing,
or fewer layers than the config says is an error, never a smaller answer. Works on a model with
weights and on one of the meta device. B batch, H KV heads, T tokens, D head size.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import get_layer_types_and_kwargs

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.probe.build import text_config
from kvpipe.models.probe.needs import LayerNeeds
from kvpipe.models.probe.place import layer_needs, with_module_states
from kvpipe.models.probe.releases import CACHE_KEYWORDS, cache_keyword

TOKENS = 2
ROWS = 3  # of the batch: what modules keep with a first axis of this length belongs to requests
_CROSS = re.compile(r"cross|enc(oder)?_?(dec|attn|attention)", re.IGNORECASE)
_FEED_FORWARDS = ("FFN", "MoE", "MLP", "SparseMoeBlock")


def model_needs(model: Any) -> tuple[LayerNeeds, ...]:
    """Of every layer; ConfigError naming each thing that could not be placed."""
    decoder, config = decoder_of(model), text_config(model.config)
    before = _in_modules(decoder)
    cache = _two_tokens(model, decoder)
    after = _in_modules(decoder)
    found = {path: state for path, state in after.items() if before.get(path) is not state}
    for path in found:  # a model with weights is left as it was
        _set(decoder, path, None)
    own = getattr(cache, "self_attention_cache", cache)
    cross = getattr(cache, "cross_attention_cache", None)
    types, windows = _kinds(config, own.layers)
    needs = layer_needs(own.layers, cross and cross.layers, types, windows, config)
    return _complete(with_module_states(needs, found), types, model.config)


def decoder_of(model: Any) -> Any:
    """The module that is called once a step, with the cache; ConfigError where there is none."""
    part = getattr(model, "thinker", model)  # Qwen-Omni: the part that writes text
    if not hasattr(part, "get_decoder"):
        raise ConfigError(
            Problem(
                "model",
                "a transformers model, or its config",
                f"{type(model).__name__}, which has no get_decoder()",
                "kvpipe.integrations.own_module takes a module of your own (docs/own_model.md)",
            )
        )
    candidates = [part.get_decoder(), getattr(part, "base_model", None), part]
    for found in candidates:  # ModernBERT's `decoder` is its head
        if hasattr(found, "forward") and _takes_cache(found):
            return _innermost(found)
    got = f"{type(candidates[0]).__name__}, whose forward has no argument for one"
    raise ConfigError(Problem("model", "a decoder that takes a cache", got))


def _innermost(found: Any) -> Any:
    """The decoder of a text model that is an encoder-decoder itself (Florence-2's Bart)."""
    inner = found.get_decoder() if hasattr(found, "get_decoder") else found
    return inner if inner is found or not _takes_cache(inner) else _innermost(inner)


def _takes_cache(module: Any) -> bool:
    names = inspect.signature(module.forward).parameters
    return any(name in names for name in CACHE_KEYWORDS)


# --- running -----------------------------------------------------------------------------------
def _two_tokens(model: Any, decoder: Any) -> Cache:
    """The model's own cache after two tokens."""
    cache = empty_cache(model)
    try:
        _run(decoder, _inputs(decoder, cache))
    except ConfigError:
        raise
    except Exception:
        # Some expert loops look at values, which meta tensors have not: leave them out.
        if next(decoder.parameters()).device.type != "meta":
            raise
        for module in decoder.modules():
            if type(module).__name__.endswith(_FEED_FORWARDS):
                module.forward = lambda hidden, *_, **__: hidden
        cache = empty_cache(model)
        _run(decoder, _inputs(decoder, cache))
    return cache


def empty_cache(model: Any) -> Cache:
    """transformers' own. An encoder-decoder's layers are those that its decoder touches: its config
    counts the encoder's, unless it names the kind of each."""
    config = text_config(model.config)
    if not _has_encoder(model.config):
        return DynamicCache(config=config)
    typed = getattr(config, "layer_types", None) is not None
    own = DynamicCache(config=config) if typed else DynamicCache()
    return EncoderDecoderCache(own, DynamicCache())


def _has_encoder(config: Any) -> bool:
    parts = (config, text_config(config))
    return any(getattr(part, "is_encoder_decoder", False) for part in parts)


def _inputs(decoder: Any, cache: Cache) -> dict[str, Any]:
    accepted = inspect.signature(decoder.forward).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    parameter = next(decoder.parameters())
    given: dict[str, Any] = {
        "input_ids": torch.ones((ROWS, TOKENS), dtype=torch.long, device=parameter.device),
        "use_cache": True,
        cache_keyword(decoder): cache,
    }
    if isinstance(cache, EncoderDecoderCache):
        given["encoder_hidden_states"] = torch.zeros(
            (ROWS, TOKENS, encoder_width(decoder)), dtype=parameter.dtype, device=parameter.device
        )
    return {name: value for name, value in given.items() if takes_any or name in accepted}


def encoder_width(decoder: Any) -> int:
    """Numbers of an encoder's token that cross attention takes, by its key projection."""
    for path, module in decoder.named_modules():
        is_key = path.rpartition(".")[2] in ("k", "k_proj", "key", "k_lin")
        if is_key and isinstance(module, torch.nn.Linear) and _CROSS.search(path):
            return int(module.in_features)
    config = decoder.config
    return int(getattr(config, "d_model", None) or config.hidden_size)


def _run(decoder: Any, inputs: dict[str, Any]) -> None:
    training = decoder.training
    decoder.eval()
    try:
        with torch.no_grad():
            decoder(**inputs)
    finally:
        decoder.train(training)


# --- what modules keep themselves --------------------------------------------------------------
def _in_modules(decoder: Any) -> dict[str, Any]:
    """Dotted name -> tensor [ROWS, ...] that is neither a parameter nor a buffer."""
    return {
        f"{path}.{name}": value
        for path, module in decoder.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[0] == ROWS
    }


def _set(decoder: Any, path: str, value: Any) -> None:
    parent, _, name = path.rpartition(".")
    setattr(decoder.get_submodule(parent), name, value)


# --- completeness ------------------------------------------------------------------------------
def _kinds(config: Any, layers: Sequence[Any]) -> tuple[Sequence[str], Sequence[int | None]]:
    """Of each layer of the cache transformers' word for its kind, and its window. Layers beyond
    those of the config (a model with two attentions in one) are what their class says."""
    types: list[str] = []
    windows: list[int | None] = []
    if getattr(config, "layer_types", None) or not _has_encoder(config):
        types, options = get_layer_types_and_kwargs(config)
        windows = [option.get("sliding_window") for option in options]
    rest = layers[len(types) :]
    more = ["sliding_attention" if layer.is_sliding else "full_attention" for layer in rest]
    return [*types, *more], [*windows, *(getattr(layer, "sliding_window", None) for layer in rest)]


def _complete(
    needs: tuple[LayerNeeds, ...], types: Sequence[str], config: Any
) -> tuple[LayerNeeds, ...]:
    """The needs, if every layer that the config counts kept something."""
    name, wanted = config.model_type, _layer_count(config)
    if len(needs) < wanted:
        got = f"{len(needs)} that touched its cache"
        raise ConfigError(Problem(f"model_type {name}", f"{wanted} layers", got))
    empty = [
        need.index
        for need, kind in zip(needs, types, strict=True)
        if kind != "dummy" and not (need.attention or need.cross or need.states or need.in_modules)
    ]
    if empty or not any(need.attention or need.states or need.in_modules for need in needs):
        shown = f"nothing in layer {', '.join(map(str, empty[:8]))}" if empty else "nothing"
        raise ConfigError(
            Problem(f"model_type {name}", "something kept of two tokens in every layer", shown)
        )
    return needs


def _layer_count(config: Any) -> int:
    for part, key in (
        (config, "decoder_layers"),
        (config, "num_decoder_layers"),
        (text_config(config), "num_hidden_layers"),
    ):
        if isinstance(value := getattr(part, key, None), int):
            return value
    return 0
