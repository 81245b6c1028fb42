"""What transformers' own cache holds for a tiny model of each type that it can build.

    python tools/measure_types.py [--out FILE] [TYPE ...]

Writes one record a type: the tiny config.json as a publisher would write it (`sparse`: what differs
from the class's defaults) and as transformers writes it (`full`), bytes of the cache after 9, 10
and 64 tokens in float32, split into self and cross attention, and the number of parameters.
tests/facts/transformers_types.json.gz is its output; the full tier measures again.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import inspect
import json
import signal
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutputWithPooling, MoEModelOutput
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TOKENS = (9, 10, 64)
ENCODED = 20  # tokens or positions given to an encoder
OUT = Path(__file__).parents[1] / "tests" / "facts" / "transformers_types.json.gz"
SECONDS = 240  # for one type

SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "embedding_size"), 64),
    **dict.fromkeys(("model_dim", "embedding_dim", "hidden_dim", "emb_dim", "dim_model"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 8),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers"), 4),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim"), 24),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "dim_ff", "n_inner"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), 96),
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "sliding_window": 16,
    "attention_chunk_size": 16,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "kv_lora_rank": 32,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 24,
    "v_head_dim": 20,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "n_mamba_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_headdim": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "state_size": 16,
    "mamba_chunk_size": 16,
    "num_mel_bins": 16,
    "max_source_positions": ENCODED,
    "max_target_positions": 128,
    "vocab_size_per_layer_input": 512,
    "hidden_size_per_layer_input": 16,
    "word_embed_proj_dim": 64,
    "d_embed": 64,
    "d_inner": 96,
}
TOKEN_KEYS = ("_token_id", "_token_index", "_id")
# Tried in turn where a class cannot be built with the sizes above.
LADDER: tuple[Mapping[str, Any], ...] = (
    {},
    {"head_dim": 16},
    {"head_dim": "DROP"},
    {"head_dim": 32},
    {"num_key_value_heads": 4},
    {"head_dim": 16, "num_key_value_heads": 4},
)
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
DOTS3 = {
    "num_key_value_heads": 4,
    "head_dim": 24,
    "shared_experts_intermediate_size": 32,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 40,
    "swa_kv_lora_rank": 48,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 20,
    "sliding_window": 16,
}
LOOPS = {
    "loop_layer_index_start": 2,
    "loop_layer_index_end": 4,
    "n_layers_per_attn_res_block": 2,
    "sliding_window_size": 16,
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "mamba", "mamba", "attention"] * 2},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "topk_method": "greedy"},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"moe_top_k": 2},
    },
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "cohere_compass": {
        "text_config": {
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
        }
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 24, "num_key_value_heads": 2},
    "hunyuan_v1_moe": {"head_dim": 24, "num_key_value_heads": 2, "num_experts": 4, "moe_topk": 2},
    "hunyuan_vl": {
        "text_config": {
            "head_dim": 24,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "xdrope_section": [3] * 4,
                "mrope_section": [3] * 4,
            },
        }
    },
    "deepseek_ocr2": {
        "text_config": {
            "mlp_layer_types": ["dense"] + ["sparse"] * 7,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
        }
    },
    "ernie4_5_vl_moe": {
        "text_config": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [3, 3, 2],
            },
            "moe_intermediate_size": [32, 16],
        }
    },
    "diffusion_gemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
    },
    "gemma4_unified_assistant": {"text_config": {"num_kv_shared_layers": 0}},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 2}},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "switch_transformers": {
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 1,
        "num_layers": 4,
        "num_decoder_layers": 3,
        "encoder_sparse_step": 2,
        "decoder_sparse_step": 3,
    },
    "longcat_flash": {"expert_ffn_hidden_size": 32, "zero_expert_num": 2, "head_dim": 8},
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGBSA": 6}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [4, 2]}},
    "csm": {"codec_config": "DROP"},
    "kyutai_speech_to_text": {"codec_config": "DROP"},
    "moshi": {"audio_encoder_config": "DROP"},
    "ministral": {"head_dim": 24, "num_key_value_heads": 2},
    "nemotron": {"head_dim": 24, "num_key_value_heads": 2},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "recurrent_gemma": {"attention_window_size": 16},
    "mllama": {"text_config": {"cross_attention_layers": [3]}},
    "voxtral": {"text_config": {"num_key_value_heads": 2, "head_dim": 24}},
    "qwen2_5_omni": {"thinker_config": {"text_config": MROPE}},
    "qwen2_5_omni_thinker": {"text_config": MROPE},
    "step3p7": {"text_config": {"sliding_window": 16}},
    "granite4_vision": {
        "text_config": {"num_key_value_heads": 2},
        "deepstack_layer_map": [],
        "spatial_target_layers": [],
    },
    "nemo_speechlm": {"head_config": {"audio_hidden_size": 64}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 4]], "window_size": 16},
    "glm4v": {"text_config": MROPE},
    "glm46v": {"text_config": MROPE},
    "glmga": {"text_config": MROPE},
    "glm_ocr": {"text_config": MROPE},
    "glm4v_moe": {
        "text_config": {"rope_parameters": {**MROPE["rope_parameters"], "mrope_section": [1, 1, 2]}}
    },
    "dots3_note_text": DOTS3,
    "dots3_note": {
        "text_config": DOTS3,
        "vision_config": {"pyramid_num_routed": [-1] + [4] * 7},
    },
    "dia": {
        "decoder_config": {
            "cross_hidden_size": 64,
            "cross_num_attention_heads": 4,
            "cross_num_key_value_heads": 4,
            "cross_head_dim": 16,
        }
    },
    "dory": {"n_input_layers": 2, "n_output_layers": 2},
    "inkling2_loop_text": LOOPS,
    "xmod": {"default_language": "en_XX"},
    "glm5_next": {"text_config": {"num_key_value_heads": 4, "index_kpool": 4}},
    "hy_v4_vl": {
        "text_config": {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [1, 1, 2],
            }
        }
    },
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "granite_docling": {"vision_config": {"out_hidden_size": 64}},
    "inkling2": {"vision_config": {"text_hidden_size": 64}},
    "inkling2_loop": {"text_config": LOOPS, "vision_config": {"text_hidden_size": 64}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "zamba2": {"layers_block_type": ["mamba", "mamba", "hybrid"] * 2 + ["mamba", "mamba"]},
    "bamba": {"attn_layer_indices": [2, 5]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "qwen2_vl": {"text_config": MROPE},
    "qwen2_5_vl": {"text_config": MROPE},
}
DERIVED = {"layer_types", "layers_block_type", "mlp_layer_types", "head_dim_list"}


def shrunk(config_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The class's defaults, made small key by key; nested parts likewise."""
    small: dict[str, Any] = {}
    for key, value in values.items():
        if key in DERIVED or value is None:
            continue
        if isinstance(value, Mapping) and "model_type" in value:
            continue  # a part of its own class: see _tiny
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int) and key.endswith(TOKEN_KEYS) and value >= SIZES["vocab_size"]:
            small[key] = 5
        elif isinstance(value, int) and value > 1 and key in SIZES:
            small[key] = SIZES[key]
    return small


def own_defaults(config_class: type) -> dict[str, Any]:
    """Field -> the class's default, before anything is derived from others."""
    base = {field.name for field in fields(transformers.PretrainedConfig)}
    found = {}
    for field in fields(config_class):
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if default is not MISSING and (field.name not in base):
            found[field.name] = default
    return found


def tiny_config(
    model_type: str, overrides: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The config object and the sparse values that made it."""
    config_class = CONFIG_MAPPING[model_type]
    small = _tiny(config_class, ())
    small = _merged(everywhere(small, changes), overrides)
    return config_class(**deepcopy(small)), small


def _tiny(config_class: type, path: tuple[str, ...]) -> dict[str, Any]:
    small = shrunk(config_class, own_defaults(config_class))
    parts = getattr(config_class, "sub_configs", {}) or {}
    whole = config_class().to_dict() if parts else {}
    for key, part in parts.items():
        written = whole.get(key)
        if not isinstance(written, Mapping):
            continue
        named = written.get("model_type")
        if not hasattr(part, "__dataclass_fields__") or part.__name__ == "AutoConfig":
            if named not in CONFIG_MAPPING:
                continue
            part = CONFIG_MAPPING[named]
        small[key] = _tiny(part, (*path, key))
        if named:
            small[key]["model_type"] = named
    return small


def _merged(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merged(merged[key], value)
        elif value == "DROP":
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


# --- building and running ----------------------------------------------------------------------
MAPPINGS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
)


def generating_types() -> list[str]:
    names = {
        name for mapping in MAPPINGS[:-1] for name in getattr(modeling_auto, f"{mapping}_NAMES", {})
    }
    return sorted(names)


def model_class(config: Any) -> Any:
    both_sides = ("SEQ", "TEXT_TO_WAVEFORM")
    first = getattr(config, "is_encoder_decoder", False)
    for mapping in sorted(MAPPINGS, key=lambda m: first and not any(w in m for w in both_sides)):
        table = getattr(modeling_auto, mapping, {})
        if type(config) in table:
            found = table[type(config)]
            return found[0] if isinstance(found, tuple) else found
    return _class_of_its_module(config)


def _class_of_its_module(config: Any) -> Any:
    """A part in no mapping: the class of its modeling file that takes a cache."""
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    if config.model_type == "blip_text_model":  # its decoder is a file of its own
        return importlib.import_module(f"{module.__name__}_text").BlipTextLMHeadModel
    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, transformers.PreTrainedModel)
        and value.__module__ == module.__name__
        and _config_of(value) is type(config)
        and {"cache", "past_key_values", "use_cache"}
        & set(inspect.signature(value.forward).parameters)
    ]
    preferred = ("ForCausalLM", "ForConditionalGeneration", "Model", "")
    return min(
        found, key=lambda v: next(i for i, p in enumerate(preferred) if v.__name__.endswith(p))
    )


def _config_of(model_class: Any) -> Any:
    annotated = model_class.__init__.__annotations__.get("config")
    if isinstance(annotated, str):
        annotated = vars(importlib.import_module(model_class.__module__)).get(annotated)
    return annotated if isinstance(annotated, type) else getattr(model_class, "config_class", None)


def build(config: Any) -> Any:
    with torch.device("meta"):
        model = model_class(config)._from_config(deepcopy(config), attn_implementation="eager")
    count = sum(p.numel() for p in model.parameters())
    if count > 150_000_000:
        raise ValueError(f"{count} parameters are not tiny")
    torch.manual_seed(0)
    return model_class(config)._from_config(deepcopy(config), attn_implementation="eager").eval()


def tensors_of(value: Any, seen: set[int]) -> Iterator[Any]:
    """Every float tensor that can be reached."""
    if id(value) in seen or isinstance(value, (str, bytes, int, float, bool, type(None), type)):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.dim() > 1:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item, seen)
    elif hasattr(value, "__dict__") and type(value).__module__.startswith("transformers"):
        if isinstance(value, (torch.nn.Module, transformers.PretrainedConfig)):
            return
        for item in vars(value).values():
            yield from tensors_of(item, seen)


def num_bytes(value: Any) -> tuple[int, list[list[int]]]:
    found = {(t.data_ptr(), tuple(t.shape)): t for t in tensors_of(value, set())}
    shapes = [list(t.shape) for t in found.values()]
    return sum(t.numel() * t.element_size() for t in found.values()), shapes


ENCODED_SEEN: dict[int, int] = {}  # id of a model -> length of its cross attention
CACHES = ("cache", "past_key_values", "cache_params", "past_buckets_states", "mems", "state")


def run(model: Any, config: Any, tokens: int) -> tuple[int, int, list[list[int]]]:
    """Bytes of self and cross attention, and the shapes, after so many tokens.

    The first of several ways to feed the model that its class takes and that fills a cache."""
    first: Exception | None = None
    cache = None
    ran = False
    for given in ways_to_feed(model, config, tokens):
        try:
            with torch.no_grad():
                out = model(use_cache=True, return_dict=True, **given)
        except Exception as error:
            first = first or error
            continue
        ran = True
        cache = given.get("cache") or next((out[n] for n in CACHES if out.get(n) is not None), None)
        if is_filled(cache) or encodes(config):
            break
    if not ran:
        assert first is not None
        raise first
    if hasattr(cache, "cross_attention_cache"):
        cross_layers = cache.cross_attention_cache.layers
        assert cross_layers[0].keys.shape[-2] == (
            ENCODED_SEEN.setdefault(id(model), cross_layers[0].keys.shape[-2])
        )
        own, shapes = num_bytes(cache.self_attention_cache)
        cross, more = num_bytes(cache.cross_attention_cache)
        return own, cross, shapes + more
    own, shapes = num_bytes(cache)
    names = ("recurrent_states", "conv1d_state")  # Recurrent Gemma keeps its states in modules
    in_modules, more = num_bytes(
        [getattr(m, n) for m in model.modules() for n in names if hasattr(m, n)]
    )
    return own + in_modules, 0, shapes + more


def is_filled(cache: Any) -> bool:
    """Whether both sides are, of a cache with two."""
    crossed = getattr(cache, "cross_attention_cache", None)
    return cache is not None and (crossed is None or crossed.layers[0].keys is not None)


def ways_to_feed(model: Any, config: Any, tokens: int) -> Iterator[dict[str, Any]]:
    ids = torch.arange(tokens).remainder(50).add(3)[None]
    source = torch.arange(ENCODED).remainder(50).add(3)[None]
    if not getattr(config, "is_encoder_decoder", False):
        if config.model_type == "recurrent_gemma":  # makes itself no cache
            yield {"input_ids": ids, "cache": transformers.DynamicCache(config=config)}
        yield {"input_ids": ids}
        for size in sizes_of_images(config):
            yield {"input_ids": ids, "pixel_values": torch.zeros((1, 3, size, size))}
            yield {"input_ids": ids, "pixel_values": torch.zeros((1, 1, 3, size, size))}
        books = getattr(config, "num_codebooks", None)
        if books:
            yield {"input_ids": ids.expand(books, -1)}
            yield {"input_ids": ids[..., None].expand(-1, -1, books + 1)}
            yield {"input_ids": ids[..., None].expand(-1, -1, books)}
        width = getattr(config, "hidden_size", SIZES["hidden_size"])
        hidden = torch.zeros((1, ENCODED, width))
        yield {"input_ids": ids, "encoder_hidden_states": hidden}
        yield {"input_ids": ids, "t_cond": torch.zeros((1, 1, width))}
        yield {"input_ids": ids, "cache": transformers.DynamicCache(config=config)}
        return
    for decoder in decoder_inputs(config, ids):
        yield {"input_ids": source, **decoder}
        yield {"input_ids": source, "bbox": torch.zeros((1, ENCODED, 4)), **decoder}
        for bins in numbers_under(
            config, ("num_mel_bins", "feature_size", "input_feat_per_channel")
        ):
            yield {"input_features": torch.zeros((1, bins, 2 * ENCODED)), **decoder}
            yield {"input_features": torch.zeros((1, 8 * ENCODED, bins)), **decoder}
        yield {"input_values": torch.zeros((1, 4000)), **decoder}
        for size in sizes_of_images(config):
            yield {"pixel_values": torch.zeros((1, 3, size, size)), **decoder}
        for width in numbers_under(config, ("hidden_size", "d_model")):
            states = torch.zeros((1, ENCODED, width))
            for encoded in (
                MoEModelOutput(last_hidden_state=states),
                BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=states),
            ):
                yield {"encoder_outputs": encoded, **decoder}


def decoder_inputs(config: Any, ids: Any) -> Iterator[dict[str, Any]]:
    if config.model_type == "dia":  # [1, tokens] would be one token of all channels
        yield {
            "decoder_input_ids": ids[..., None].expand(-1, -1, config.decoder_config.num_channels)
        }
        return
    yield {"decoder_input_ids": ids}
    for books in numbers_under(config, ("num_codebooks", "num_channels")):
        yield {"decoder_input_ids": ids.expand(books, -1)}
        yield {"decoder_input_ids": ids[..., None].expand(-1, -1, books)}


def numbers_under(config: Any, names: tuple[str, ...]) -> list[int]:
    """Every whole number that the config or a part of it has under one of the names."""
    found: list[int] = []
    stack = [config.to_dict()]
    while stack:
        part = stack.pop()
        found += [part[n] for n in names if isinstance(part.get(n), int) and part[n] < 10_000]
        stack += [value for value in part.values() if isinstance(value, dict)]
    return list(dict.fromkeys(found))


def sizes_of_images(config: Any) -> list[int]:
    return [size for size in numbers_under(config, ("image_size",)) if size <= 448][:2]


def encodes(config: Any) -> bool:
    """A masked language model that was not asked to decode."""
    masked = type(config) in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING
    generates = getattr(config, "is_decoder", False) or config.is_encoder_decoder
    return masked and not generates


def parameters_by_part(model: Any) -> dict[str, int]:
    """Parameters under the first two words of their names; a tied one once."""
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        words = [word for word in name.split(".")[:-1] if not word.isdigit()]
        part = ".".join(words[:2])
        parts[part] = parts.get(part, 0) + parameter.numel()
    return parts


def measured(config: Any) -> dict[str, Any]:
    model = build(config)
    results = [run(model, config, n) for n in TOKENS]
    if not results[0][0] and not encodes(config):
        raise ValueError("it makes itself no cache")
    return {
        "self": [own for own, _, _ in results],
        "cross": [cross for _, cross, _ in results],
        "shapes": results[0][2],
        "encoded": ENCODED_SEEN.pop(id(model), 0),
        "encodes": encodes(config),
        "parameters": parameters_by_part(model),
        "class": type(model).__name__,
    }


def everywhere(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes in every part that has the key."""
    changed = {k: everywhere(v, changes) if isinstance(v, dict) else v for k, v in values.items()}
    for key, value in changes.items():
        if key in changed and value == "DROP":
            del changed[key]
        elif key in changed:
            changed[key] = value
    return changed


def record(model_type: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The first of the ladder that runs, else the first failure."""
    first: dict[str, Any] = {}
    for changes in LADDER:
        entry = attempt(model_type, overrides, changes)
        if not entry.get("failed") and "whole_failed" not in entry:
            return entry
        if not first or (first.get("failed") and not entry.get("failed")):
            first = entry
    return first


def speaking_part(config: Any) -> Any:
    """The part that generates text: of Qwen2.5-Omni the thinker, not its talker."""
    return getattr(config, "thinker_config", None) or config.get_text_config(decoder=True)


def attempt(
    model_type: str, overrides: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    try:
        config, sparse = tiny_config(model_type, overrides, changes)
        entry["sparse"] = {"model_type": model_type, **sparse}
        entry["full"] = json.loads(config.to_json_string(use_diff=False))
        text = speaking_part(config)
        entry["text_type"] = text.get_text_config(decoder=True).model_type
        try:
            entry |= measured(config)
        except Exception as error:
            if text is config:
                raise
            entry["whole_failed"] = told(error)
            entry |= measured(text)
    except Exception as error:
        entry["failed"] = told(error)
    parts = CONFIG_MAPPING[model_type].sub_configs or {}
    if "class" not in entry and "text_config" in parts:
        entry |= of_part_alone(model_type, "text_config", parts, overrides, changes)
    return {key: value for key, value in entry.items() if value is not None}


def of_part_alone(
    model_type: str,
    key: str,
    parts: Mapping[str, Any],
    overrides: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """The part that generates, where the whole cannot be made tiny: read as a nested file is."""
    try:
        part = parts[key]
        named = CONFIG_MAPPING[model_type]().to_dict()[key]["model_type"]
        part = CONFIG_MAPPING[named] if part.__name__ == "AutoConfig" else part
        small = _merged(everywhere(_tiny(part, ()), changes), overrides.get(key, {}))
        config = part(**deepcopy(small))
        found = measured(config)
    except Exception as error:
        return {"failed": told(error)}
    full = json.loads(config.to_json_string(use_diff=False))
    return {
        **found,
        "sparse": {"model_type": model_type, key: {"model_type": named, **small}},
        "full": {"model_type": model_type, key: full},
        "text_type": named,
        "failed": None,
    }


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _late(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--overrides", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    known = (
        json.loads(gzip.decompress(arguments.out.read_bytes())) if arguments.out.exists() else {}
    )
    overrides = json.loads(arguments.overrides.read_text()) if arguments.overrides else {}
    for name in arguments.types or generating_types():
        signal.alarm(SECONDS)
        known[name] = record(name, _merged(OVERRIDES.get(name, {}), overrides.get(name, {})))
        signal.alarm(0)
        entry = known[name]
        print(name, entry.get("failed") or (entry["self"], entry["cross"]), flush=True)
        arguments.out.write_bytes(
            gzip.compress(json.dumps(known, sort_keys=True).encode(), mtime=0)
        )


if __name__ == "__main__":
    main()
