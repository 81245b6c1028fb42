"""A type without a family, by the standard keys of its file: right, or refused.

The file must say everything that a cache depends on: layers, heads, K/V heads, head size, and the
kind of each layer where there is a window. Nothing is taken from a class that is not known. A key
that smells of states, sharing, windows or cross attention and is not known here refuses the file;
any other unknown key is named. What is read so is labelled, and exact only where headers prove it.
Hidden size over heads is a head size only where headers prove it in every layer: classes differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvpipe.errors import ConfigError, Problem, printable
from kvpipe.models._safetensors import TensorTable
from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, unreadable
from kvpipe.models.families.caches import CHUNKED, FULL, SLIDING, attention_caches, layer_types
from kvpipe.models.families.deepseek import latent_caches
from kvpipe.models.proof import proven_layers

LABEL = "config.json, by standard keys"

_READ = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
    "attention_chunk_size", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
    "qk_head_dim", "v_head_dim", "max_position_embeddings", "vocab_size", "model_type",
    "architectures", "auto_map", "dtype", "torch_dtype", "quantization_config",
    "compression_config", "_name_or_path", "num_nextn_predict_layers", "intermediate_size",
}  # fmt: skip
# Of keys that smell, those that no cache depends on.
_HARMLESS = re.compile(
    r".*(dropout|_drop|pdrop|_eps|epsilon|_bias|_act|activation.*|_std|_range|_scale|_scaling.*|theta"
    r"|_multiplier|_coef|_loss.*|_factor|_clip.*|_norm|layernorm|_token_id|_token_index|_cap.*)"
    r"|_?attn_implementation.*|chunk_size_feed_forward|(residual_in_|normalize_before_).*"
    r"|(num_|n_|moe_|first_|last_)?.*(expert|moe|router|routed|sparse_step|dense|topk|top_k).*"
    r"|mlp_only_layers|mlp_layer_types|layer_norm.*|norm_.*|n_group|topk_group|num_nextn.*"
    r"|add_cross_attention|is_decoder|is_encoder_decoder|cross_attention_hidden_size"
    r"|partial_rotary_factor|rope_.*|rotary_.*|no_rope_layers?.*|vocab.*|(vision|audio)_.*"
    r"|id2label|label2id|return_dict|(encoder|decoder)_no_repeat_ngram_size|decoder_start_token_id|tie_.*|use_cache"
    r"|output_(hidden_states|attentions)|pruned_heads|problem_type|transformers_version|hidden_act"
    r"|(qk|q|k|v|qkv|mlp|o|attention|attn|use)_?(bias|norm|layernorm|qk_norm|clip)"
)
_SMELLS = re.compile(
    r"window|layer|pattern|chunk|shar|cross|state|conv|ssm|mamba|linear|recur|lru|latent|rank|kv"
    r"|head|attn|attention|cache|mem|loop|cycle|hybrid|block|index|sparse|compress|global|local"
    r"|interval|swa|group|encoder|decoder|per_layer|stack|repeat|memory|delta|retention|multi_query"
)
# An architecture that generates text, as files name it.
_GENERATES = re.compile(
    r".*(ForCausalLM.*|LMHeadModel|ForConditionalGeneration|ChatModel|ForImageTextToText)"
)


def generates(raw: Mapping[str, Any]) -> bool:
    """Whether the file names an architecture that generates text."""
    names = raw.get("architectures")
    listed = names if isinstance(names, (list, tuple)) else ()
    known = raw.get("auto_map")
    mapped = isinstance(known, Mapping) and "AutoModelForCausalLM" in known
    return mapped or any(isinstance(n, str) and _GENERATES.fullmatch(n) for n in listed)


def family_by_keys(
    raw: Mapping[str, Any], text: Mapping[str, Any], tensors: TensorTable | None = None
) -> Family:
    """The row of a file whose standard keys say all; ConfigError naming every key that is amiss.

    tensors: headers of its weights, which may prove a head size that the file leaves out.
    """
    config = Config(text)
    problems = [*_missing(config), *_foreign(text)]
    problems += [] if problems else _head_size(config, tensors)
    problems += _incomplete(raw, text)
    if not generates(raw):
        problems.insert(0, _problem("architectures", "one that generates text", _named(raw)))
    if problems:
        raise ConfigError(problems)
    return Family(caches=_caches)


def unknown_keys(text: Mapping[str, Any]) -> list[str]:
    """Keys that are named in the answer: not known, and no sign of a cache of another kind."""
    return sorted(
        printable(key)
        for key, value in text.items()
        if key not in _READ
        and not _HARMLESS.fullmatch(key)
        and not _SMELLS.search(key)
        and value not in (None, False)
    )


def _caches(config: Config) -> list[CacheGeometry]:
    if config.number("kv_lora_rank"):
        return latent_caches(config)
    types = config.words("layer_types")
    return attention_caches(config, None if types is None else layer_types(config, types))


def _missing(config: Config) -> list[Problem]:
    """What a file must say itself, since its class is not known."""
    latent = config.get("kv_lora_rank") is not None
    needed = ["hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]
    needed += ["qk_rope_head_dim"] if latent else ["num_key_value_heads"]
    problems = [
        _problem(key, "a number (what its class supplies is not known)", "nothing")
        for key in needed
        if config.get(key) is None
    ]
    return problems + ([] if problems or latent else _kinds(config))


def _head_size(config: Config, tensors: TensorTable | None) -> list[Problem]:
    """A file without it is read where every layer's projections have hidden_size / heads."""
    if config.get("kv_lora_rank") is not None or config.get("head_dim") is not None:
        return []
    if not tensors:
        expected = "a number (what its class supplies is not known), or weights whose headers say"
        return [_problem("head_dim", expected, "nothing")]
    if config.hidden_size % config.num_heads == 0 and _is_proven(config, tensors):
        return []
    ratio = f"{config.hidden_size:,} / {config.num_heads:,}"
    expected = f"a number (headers of its weights do not prove {ratio} in every layer)"
    return [_problem("head_dim", expected, "nothing")]


def _is_proven(config: Config, tensors: TensorTable) -> bool:
    try:
        proven, attending = proven_layers(_caches(config), config.num_heads, tensors)
    except ConfigError:
        return False  # a layer has other rows
    return 0 < attending == proven


# What a class saves whatever its values are: a file without them was cut down, and may lack others.
_ALWAYS_SAVED = {
    "hidden_act", "initializer_range", "use_cache", "rms_norm_eps", "layer_norm_eps",
    "layernorm_epsilon", "layer_norm_epsilon", "norm_eps", "attention_dropout",
}  # fmt: skip
_PARTS = ("text_config", "llm_config", "language_config")


def _incomplete(raw: Mapping[str, Any], text: Mapping[str, Any]) -> list[Problem]:
    """A file that was cut down, or whose text part stands beside an encoder that it attends to."""
    problems = []
    if len(_ALWAYS_SAVED & text.keys()) < 2:
        expected = "a file as its class saves it (hidden_act, initializer_range, use_cache, ...)"
        problems.append(_problem("keys", expected, f"{len(text)} of them"))
    beside = raw is not text and not any(raw.get(key) is text for key in _PARTS)
    if beside or any(part.get("is_encoder_decoder") for part in (raw, text)):
        problems.append(_problem("is_encoder_decoder", "a decoder alone", "an encoder beside it"))
    return problems


def _kinds(config: Config) -> list[Problem]:
    """A window or a chunk says nothing without the layers that have it."""
    types = config.words("layer_types")
    if types is not None:
        unknown = sorted(set(types) - {FULL, SLIDING, CHUNKED})
        expected = f"{FULL}, {SLIDING} or {CHUNKED}"
        return [_problem("layer_types", expected, printable(kind)) for kind in unknown]
    windows = config.number("sliding_window") if config.flag("use_sliding_window", True) else 0
    bounds = {
        "sliding_window": windows,
        "attention_chunk_size": config.number("attention_chunk_size"),
    }
    return [
        _problem("layer_types", f"the kind of each layer, beside {key}", "nothing")
        for key, size in bounds.items()
        if 0 < size < config.context_length
    ]


_OF_LATENTS = {"v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "q_lora_rank"}


def _foreign(text: Mapping[str, Any]) -> list[Problem]:
    """Keys that may mean another kind of cache."""
    return [
        _problem(
            printable(key), "no key that may change what is stored", printable(repr(value))[:40]
        )
        for key, value in text.items()
        if (key in _OF_LATENTS and not text.get("kv_lora_rank"))
        or (key not in _READ and not _HARMLESS.fullmatch(key) and _SMELLS.search(key))
        if value not in (None, False, [], {}, "")
    ]


def _named(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures")
    return printable(", ".join(map(str, names))) if isinstance(names, list) and names else "none"


def _problem(key: str, expected: str, got: str) -> Problem:
    (problem,) = unreadable(key, expected, got).problems
    return problem
