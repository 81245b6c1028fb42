"""Types whose classes come with their checkpoints: read from their published keys alone.

Nothing supplies what such a file leaves out, so that a key it needs and has not is an error. The
source of each is the engine's own reading of the file (vllm/model_executor/models/, 0.32).
"""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.blocks import Block
from kvpipe.models.families.caches import attention_cache, attention_caches
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
    grouped = config.flag("multi_query_attention")
    heads = config.count("multi_query_group_num") if grouped else config.num_heads
    own = config.having(num_key_value_heads=heads, head_dim=config.count("kv_channels"))
    return attention_caches(own, prefix="transformer.encoder.layers")


def grouped_caches(config: Config) -> list[CacheGeometry]:
    """step1.py, step3_text.py: num_attention_groups are the K/V heads."""
    return attention_caches(config.having(num_key_value_heads=config.count("num_attention_groups")))


def searched_caches(config: Config) -> list[CacheGeometry]:
    """nemotron_nas.py: block_configs says of each layer how many queries share a K/V head, or that
    it has no attention."""
    blocks = config.get("block_configs")
    layers, heads = config.num_layers, config.num_heads
    if not isinstance(blocks, list) or len(blocks) != layers:
        raise unreadable("block_configs", f"{layers} blocks (num_hidden_layers)", type(blocks))
    caches = []
    for layer, block in enumerate(blocks):
        own = Config({"block": block if isinstance(block, dict) else {}}).section("block")
        attention = own.section("attention")
        if attention.flag("no_op") or attention.flag("replace_with_linear"):
            continue
        group = attention.count("n_heads_in_group")
        if heads % group:
            raise attention.wrong("n_heads_in_group", f"a number that divides {heads}", group)
        caches.append(attention_cache(config.having(num_key_value_heads=heads // group), layer))
    return caches


def minimax_01_caches(config: Config) -> list[CacheGeometry]:
    """minimax_text_01.py of 0.17 (0.23 was the last to serve it): attn_type_list says which layers
    attend, the others keep a lightning state of head_dim squared for every head."""
    if config.numbers("attn_type_list") is None:
        raise config.wrong("attn_type_list", "0 (linear) or 1 (full) for every layer", None)
    sized = config.having(
        num_key_value_heads=config.count("num_key_value_heads"), head_dim=config.count("head_dim")
    )
    return minimax_caches(sized)


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
    "minicpm": Family(caches=full_caches),
    "mimo": Family(caches=optional_window_caches, weights=qkv_biased),
    "baichuan": Family(
        caches=all_heads_caches, aliases={"max_position_embeddings": "model_max_length"}
    ),
    "chatglm": Family(caches=chatglm_caches, aliases=_CHATGLM),
    "telechat": Family(caches=full_caches, aliases=_TELECHAT),
    "telechat3": Family(caches=full_caches, weights=llama),  # registry.py: a Llama
    "step1": Family(caches=grouped_caches),
    **dict.fromkeys(("step3_text", "step3_vl_text"), _STEP3),
    **dict.fromkeys(("minimax_text_01", "minimax_m1"), _MINIMAX),
    "nemotron-nas": Family(caches=searched_caches),
}
