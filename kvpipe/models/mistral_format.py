"""Mistral's own params.json, in the keys of a config.json.

Repositories of Mistral may hold it beside a config.json or alone. What each key means, and which
class serves it, is vLLM's reading (transformers_utils/configs/mistral.py, 0.33). Files of the same
three keys are written by other projects (Meta's first Llamas) with keys of their own: these are
named, and not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpipe.models._values import Values, unreadable

NAME = "params.json"
LENGTH = 128_000  # tokens, where the file says none
_SIZES = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "hidden_dim": "intermediate_size", "norm_eps":
    "rms_norm_eps", "tied_embeddings": "tie_word_embeddings", "activation": "hidden_act",
}  # fmt: skip
_EXPERTS = {
    "num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts",
    "expert_hidden_dim": "moe_intermediate_size", "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group", "routed_scale": "routed_scaling_factor",
    "route_every_n": "moe_layer_freq", "num_experts_per_tok": "num_experts_per_tok",
    "first_k_dense_replace": "first_k_dense_replace",
}  # fmt: skip
_AS_WRITTEN = (
    "head_dim", "vocab_size", "max_position_embeddings", "max_seq_len", "rope_theta", "dtype",
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
_BESIDE = ("sliding_window", "moe", "yarn", "vision_encoder", "multimodal", "quantization")
# What changes neither a shape nor a count.
_HARMLESS = ("llama_4_scaling", "model_type", "causal", "ragged_attention", "rope_scaling_group")


_KINDS = ("transformer", "mamba")


def is_params(raw: Mapping[str, Any]) -> bool:
    """Whether an object has Mistral's keys and names no class of transformers."""
    is_named = raw.get("model_type") not in (None, *_KINDS) or "architectures" in raw
    return not is_named and {"dim", "n_layers"} <= raw.keys()


def as_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json that says the same; ConfigError for keys that may mean something else."""
    known = {*_SIZES, *_AS_WRITTEN, *_BESIDE, *_HARMLESS}
    if strange := sorted(raw.keys() - known):
        expected, got = "the keys of a params.json of Mistral", ", ".join(map(repr, strange[:6]))
        raise unreadable(NAME, expected, got, "a config.json beside it is read first")
    values = Values(raw)
    if values.word("model_type", "transformer") != "transformer":
        raise values.wrong("model_type", "transformer", values.word("model_type"))
    text = {_SIZES.get(key, key): raw[key] for key in raw if key in (*_SIZES, *_AS_WRITTEN)}
    text["max_position_embeddings"] = _length(values)
    # Mistral publishes bfloat16; headers of the weights, where there are some, say it themselves.
    text |= {"torch_dtype": text.pop("dtype", None) or "bfloat16"}
    text |= {"tie_word_embeddings": values.flag("tied_embeddings"), **_windows(values)}
    text |= {"model_type": "mistral", **_experts(values), **_yarn(values), **_quantization(values)}
    return _whole(values, text)


def _length(values: Values) -> int:
    return values.count("max_position_embeddings", values.count("max_seq_len", LENGTH))


def _windows(values: Values) -> dict[str, Any]:
    """One for all layers, or a round of windows and nulls that the layers repeat."""
    window = values.get("sliding_window")
    if not isinstance(window, list):
        return {"sliding_window": window}
    sizes, layers = {size for size in window if size is not None}, values.layers("n_layers")
    if len(sizes) > 1 or not window or layers % len(window):
        expected = "one window, in a round that divides the layers"
        raise values.wrong("sliding_window", expected, window)
    kinds = ["full_attention" if size is None else "sliding_attention" for size in window]
    rounds = layers // len(window)
    return {"sliding_window": next(iter(sizes), None), "layer_types": kinds * rounds}


def _experts(values: Values) -> dict[str, Any]:
    """Mixtral's; with shared ones, and latent rows, those of DeepSeek-V3 (Mistral Large 3)."""
    moe = values.section("moe")
    latent = values.number("kv_lora_rank")
    if not moe.raw and not latent:
        return {}
    if not moe.raw:  # latent rows without experts: dense in every layer
        dense = {"first_k_dense_replace": values.layers("n_layers")}
        return {"model_type": "deepseek_v3", **dense}
    if not moe.number("num_shared_experts"):
        number = moe.count("num_experts")
        chosen = {"num_experts_per_tok": moe.count("num_experts_per_tok")}
        return {"model_type": "mixtral", "num_local_experts": number, **chosen}
    named = {_EXPERTS[key]: moe.raw[key] for key in _EXPERTS if key in moe.raw}
    return {"model_type": "deepseek_v3", **named}


def _yarn(values: Values) -> dict[str, Any]:
    """max_position_embeddings counts the stretched length already, or vLLM's default is taken."""
    yarn = values.section("yarn")
    if not yarn.raw:
        return {}
    length, factor = yarn.count("original_max_position_embeddings"), yarn.get("factor")
    rope = {"original_max_position_embeddings": length, "factor": factor}
    return {"rope_scaling": {"rope_type": "yarn", **rope}}


def _quantization(values: Values) -> dict[str, Any]:
    quantization = values.section("quantization")
    if not quantization.raw:
        return {}
    if quantization.word("qformat_weight") == "fp8_e4m3":
        return {"quantization_config": {"quant_method": "fp8"}}
    method = quantization.word("quant_method").lower().replace("_", "-")
    if method != "compressed-tensors":
        raise quantization.wrong("quant_method", "compressed-tensors, or qformat_weight", method)
    return {"quantization_config": {**quantization.raw, "quant_method": method}}


def _whole(values: Values, text: dict[str, Any]) -> Mapping[str, Any]:
    """With a tower of images or of sound beside it, the text is a part."""
    beside = values.section("multimodal")
    images = beside.section("vision_encoder_args").raw or values.section("vision_encoder").raw
    sound = beside.section("whisper_model_args").raw
    if not images and not sound:
        return text
    whole = {"model_type": "mistral3" if images else "voxtral", "text_config": text}
    return {**whole, "tie_word_embeddings": text["tie_word_embeddings"]}
