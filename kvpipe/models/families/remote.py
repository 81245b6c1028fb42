"""Types whose classes come with their checkpoints: read from their published keys alone.

Nothing supplies what such a file leaves out, so that a key it needs and has not is an error. The
source of each is the engine's own reading of the file (vllm/model_executor/models/, 0.32).
"""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.blocks import Block, Experts
from kvpipe.models.families.caches import attention_caches
from kvpipe.models.families.delta import minimax_caches, minimax_weights
from kvpipe.models.families.llama import (
    full_caches,
    llama,
    mistral,
    one_window_caches,
    optional_window_caches,
    qk_normed,
    qkv_biased,
)
from kvpipe.models.families.weights import decoder


def all_heads_caches(config: Config) -> list[CacheGeometry]:
    """Every query head has its own K and V, whatever a key says (baichuan.py)."""
    return attention_caches(config.having(num_key_value_heads=config.num_heads))


def chatglm_caches(config: Config) -> list[CacheGeometry]:
    """chatglm.py: multi_query_group_num where queries are grouped, heads of kv_channels."""
    return attention_caches(chatglm_sizes(config), prefix="transformer.encoder.layers")


def chatglm_sizes(config: Config) -> Config:
    grouped = config.flag("multi_query_attention")
    heads = config.count("multi_query_group_num") if grouped else config.num_heads
    return config.having(num_key_value_heads=heads, head_dim=config.count("kv_channels"))


def qwen_sizes(config: Config) -> Config:
    """qwen.py, 0.17: every query head has its own K and V of kv_channels; two halves of
    intermediate_size are gate and up."""
    width, heads = config.count("intermediate_size") // 2, config.num_heads
    own = {"num_key_value_heads": heads, "head_dim": config.count("kv_channels")}
    return config.having(intermediate_size=width, **own)


def qwen_caches(config: Config) -> list[CacheGeometry]:
    return attention_caches(qwen_sizes(config), prefix="transformer.h", name="attn.attn")


def grouped_caches(config: Config) -> list[CacheGeometry]:
    """step1.py, step3_text.py: num_attention_groups are the K/V heads."""
    return attention_caches(config.having(num_key_value_heads=config.count("num_attention_groups")))


def minimax_01_caches(config: Config) -> list[CacheGeometry]:
    """minimax_text_01.py of 0.17 (0.23 was the last to serve it): attn_type_list says which layers
    attend, the others keep a lightning state of head_dim squared for every head."""
    if config.numbers("attn_type_list") is None:
        raise config.wrong("attn_type_list", "0 (linear) or 1 (full) for every layer", None)
    sized = config.having(
        num_key_value_heads=config.count("num_key_value_heads"), head_dim=config.count("head_dim")
    )
    return minimax_caches(sized)


def all_heads_weights(config: Config) -> list[Weight]:
    return mistral(config.having(num_key_value_heads=config.num_heads))


def chatglm_weights(config: Config) -> list[Weight]:
    """A bias of q, k and v where add_qkv_bias says so, of every projection by add_bias_linear."""
    block = Block(bias="add_qkv_bias", o_bias="add_bias_linear", mlp_bias="add_bias_linear")
    return decoder(chatglm_sizes(config), block)


def qwen_weights(config: Config) -> list[Weight]:
    """no_bias is of all projections but q, k and v."""
    return decoder(qwen_sizes(config), Block(bias="yes", o_bias="!no_bias", mlp_bias="!no_bias"))


def minicpm_weights(config: Config) -> list[Weight]:
    """A Llama without biases; in the mixtures of MiniCPM every layer has its experts."""
    experts = Experts(width="intermediate_size") if config.number("num_experts") else None
    return decoder(config, Block(experts=experts))


def minimax_01_weights(config: Config) -> list[Weight]:
    """As transformers' class, with neither a shared expert nor layers without experts, which the
    code knows and no published file has."""
    if config.get("shared_intermediate_size") not in (None, 0):
        shared = config.get("shared_intermediate_size")
        raise config.wrong("shared_intermediate_size", "0, as published", shared)
    if config.count("num_local_experts") == 1:
        raise config.wrong("num_local_experts", "several, as published", 1)
    return minimax_weights(config)


_CHATGLM = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "vocab_size": "padded_vocab_size",
    "max_position_embeddings": "seq_length",
}
_TELECHAT = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
             "max_position_embeddings": "seq_length"}  # fmt: skip
internlm = partial(decoder, block=Block(bias="bias"))
orion = partial(decoder, block=Block(norm_bias=True), norm_bias=True)
_LENGTH = dict.fromkeys(("max_position_embeddings", "max_position_embedding"), "max_seq_len")
_STEP3 = Family(caches=grouped_caches, aliases=_LENGTH)  # step3_vl.py's keys
_MINIMAX = Family(caches=minimax_01_caches, weights=minimax_01_weights)
_LLAMAS = "bailing_moe bailing_moe_v2 deepseek molmo"
_QWEN2 = Family(caches=optional_window_caches, weights=qkv_biased, has_towers=True)
_QWEN3 = Family(caches=optional_window_caches, weights=qk_normed, has_towers=True)
_PHI3 = Family(caches=one_window_caches, weights=mistral, has_towers=True)

FAMILIES = {
    **{name: Family(caches=full_caches) for name in _LLAMAS.split()},
    **dict.fromkeys(("dots_ocr", "minicpmv", "minicpmo"), _QWEN2),
    **dict.fromkeys(("Keye", "KeyeVL1_5"), _QWEN3),
    **dict.fromkeys(("phi3_v", "phi4mm"), _PHI3),
    "orion": Family(caches=full_caches, weights=orion),
    "solar": Family(caches=one_window_caches, weights=mistral),
    "internlm": Family(caches=full_caches, weights=internlm),
    "internlm2": Family(caches=full_caches, weights=internlm),
    "minicpm": Family(
        caches=full_caches, weights=minicpm_weights, defaults={"tie_word_embeddings": True}
    ),
    "mimo": Family(caches=optional_window_caches, weights=qkv_biased),
    "baichuan": Family(
        caches=all_heads_caches,
        weights=all_heads_weights,
        aliases={"max_position_embeddings": "model_max_length"},
    ),
    "chatglm": Family(caches=chatglm_caches, weights=chatglm_weights, aliases=_CHATGLM),
    "qwen": Family(
        caches=qwen_caches, weights=qwen_weights, aliases={"max_position_embeddings": "seq_length"}
    ),
    "telechat": Family(caches=full_caches, aliases=_TELECHAT),
    "telechat3": Family(caches=full_caches, weights=llama),  # registry.py: a Llama
    "step1": Family(caches=grouped_caches),
    **dict.fromkeys(("step3_text", "step3_vl_text"), _STEP3),
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), _MINIMAX),
}
