"""What a transformers model keeps between steps, found by running two tokens with its own cache.

No table of model types: whatever lands in the model's cache is what has to be planned. The same
question works on a model, on the meta device, and for models that were written after this file.
B batch, H KV heads, D head size, T tokens.
"""

from __future__ import annotations

import inspect
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.mamba import StateArray
from kvpipe.stages.binding.transformers_cache.versions import cache_keyword, require_transformers

PROBE_TOKENS = 2


@dataclass(frozen=True, kw_only=True)
class KVNeed:
    """K [H, D] and V [H, D] of every token. window: tokens a query may see, itself included (None:
    all), and chunked: whether it is a chunk instead. latent: K is an MLA latent, V its rope part,
    which an engine stores as one row."""

    num_heads: int
    head_size: int
    head_size_v: int
    dtype: str
    window: int | None = None
    chunked: bool = False
    latent: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerNeeds:
    """Of one model layer. states: convolution states first. shares_with: the layer whose K/V this
    one reads. num_states: separate (convolution, recurrent) pairs of this layer."""

    index: int
    attention: KVNeed | None = None
    cross: KVNeed | None = None
    states: tuple[StateArray, ...] = ()
    num_states: int = 0
    shares_with: int | None = None


def dtype_name(dtype: Any) -> str:
    """torch.bfloat16 -> "bfloat16"; as kvpipe's specs spell it."""
    name = str(dtype).removeprefix("torch.")
    return {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(name, name)


def model_needs(model: Any) -> tuple[LayerNeeds, ...]:
    """Needs of every layer of a transformers model (or of a config, built on the meta device).

    ConfigError where the model caches something that is neither K/V nor a fixed-size state."""
    require_transformers()
    model = model if hasattr(model, "forward") else skeleton(model)
    import torch
    from transformers import Cache, DynamicCache, EncoderDecoderCache

    decoder = model.get_decoder()
    config = model.config.get_text_config(decoder=True)
    is_encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    own: Cache = DynamicCache() if is_encoder_decoder else DynamicCache(config=config)
    cross: Cache | None = DynamicCache() if is_encoder_decoder else None
    device = next(decoder.parameters()).device
    inputs: dict[str, Any] = {
        "input_ids": torch.ones((1, PROBE_TOKENS), dtype=torch.long, device=device),
        "use_cache": True,
        cache_keyword(decoder): EncoderDecoderCache(own, cross) if cross is not None else own,
    }
    if cross is not None:
        width = getattr(config, "d_model", None) or config.hidden_size
        dtype = next(decoder.parameters()).dtype
        inputs["encoder_hidden_states"] = torch.zeros(
            (1, PROBE_TOKENS, width), dtype=dtype, device=device
        )
    _run(decoder, inputs)
    return _read(own, cross, config)


def skeleton(config: Any) -> Any:
    """The model of a config on the meta device: every shape, no memory. Implementations that look
    at values (a padding warning, kernels of one dtype) are switched for ones that do not."""
    import torch

    config = deepcopy(config)
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    config.pad_token_id = None
    with torch.device("meta"):
        return model_class(config)(config)


def model_class(config: Any) -> Any:
    """The class with a language head: the config's own architecture, or its type's."""
    import transformers

    names = getattr(config, "architectures", None) or ()
    found = [c for name in names if (c := getattr(transformers, name, None))]
    autos: list[Any] = [transformers.AutoModelForCausalLM]
    if getattr(config, "is_encoder_decoder", False):  # Bart's decoder alone is a causal model, too
        autos = [transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForSpeechSeq2Seq]
    kind = type(config)
    found += [auto._model_mapping[kind] for auto in autos if kind in auto._model_mapping]
    if not found:
        raise ConfigError(
            Problem(
                "model",
                "a config of a model that generates text",
                f"model_type '{config.model_type}'",
                "transformers has no class for it with a language head",
            )
        )
    return found[0]


def _run(decoder: Any, inputs: dict[str, Any]) -> None:
    import torch

    accepted = inspect.signature(decoder.forward).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    kept = {name: value for name, value in inputs.items() if takes_any or name in accepted}
    training = decoder.training
    decoder.eval()
    try:
        with torch.no_grad():
            decoder(**kept)
    finally:
        decoder.train(training)


# --- reading the cache -------------------------------------------------------------------------
def _read(own: Any, cross: Any, config: Any) -> tuple[LayerNeeds, ...]:
    needs, problems = [], []
    types = getattr(config, "layer_types", None) or [""] * len(own.layers)
    for index, layer in enumerate(own.layers):
        chunked = types[index] == "chunked_attention" or (
            not types[index] and getattr(config, "attention_chunk_size", None) is not None
        )
        attention = _kv(layer, config, chunked)
        states = _states(layer)
        need = LayerNeeds(
            index=index,
            attention=attention,
            cross=_kv(cross.layers[index], config, False) if cross is not None else None,
            states=states,
            num_states=int(getattr(layer, "number_of_states", 0)) if states else 0,
        )
        if extra := _unknown(layer):
            problems.append(
                Problem(
                    f"layer {index} of {config.model_type}",
                    "a cache of keys, values or fixed-size states",
                    extra,
                    "transformers' own cache is needed for this model",
                )
            )
        needs.append(need)
    if problems:
        raise ConfigError(problems)
    return _with_sharing(needs, config)


def _kv(layer: Any, config: Any, chunked: bool) -> KVNeed | None:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or values is None or keys.dim() != 4:
        return None
    window = getattr(layer, "sliding_window", None) if layer.is_sliding else None
    rank = getattr(config, "kv_lora_rank", None)
    return KVNeed(
        num_heads=keys.shape[1],
        head_size=keys.shape[3],
        head_size_v=values.shape[3],
        dtype=dtype_name(keys.dtype),
        window=window,
        chunked=chunked and window is not None,
        latent=rank is not None and (keys.shape[1], keys.shape[3]) == (1, rank),
    )


def _states(layer: Any) -> tuple[StateArray, ...]:
    found = []
    for name, held in (("conv", "conv_states"), ("ssm", "recurrent_states")):
        for number, state in getattr(layer, held, {}).items():
            if state is not None:
                found.append(
                    StateArray(
                        name=f"{name}{number or ''}",
                        shape=tuple(state.shape[1:]),
                        dtype=dtype_name(state.dtype),
                    )
                )
    return tuple(found)


def _unknown(layer: Any) -> str:
    """Tensors that a layer keeps besides keys, values and states, in words."""
    import torch

    known = {"keys", "values", "_sliding_window_tensor"}
    names = [n for n, v in vars(layer).items() if isinstance(v, torch.Tensor) and n not in known]
    return f"{type(layer).__name__} with {', '.join(names)}" if names else ""


def _with_sharing(needs: list[LayerNeeds], config: Any) -> tuple[LayerNeeds, ...]:
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
