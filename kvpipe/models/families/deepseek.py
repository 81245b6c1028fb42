"""DeepSeek and its kin: multi-head latent attention (arXiv:2405.04434), one row a token and layer.

The row has kv_lora_rank latent and qk_rope_head_dim rope numbers. The file's `head_dim` (the rope
size) and `num_key_value_heads` describe something else. V3.2 adds an indexer with its own cache.
"""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.experts import dense_then_experts
from kvpipe.models.families.weights import decoder, linear, norm, norms


# --- caches ----------------------------------------------------------------------------------
def latent_caches(config: Config) -> list[CacheGeometry]:
    row = config.count("kv_lora_rank") + config.count("qk_rope_head_dim")
    return [
        CacheGeometry(
            name=f"model.layers.{i}.self_attn.attn",
            layer=i,
            spec="mla",
            fields={"head_size": row},
        )
        for i in range(config.num_layers)
    ]


def indexer_cache(layer: int, size: int) -> CacheGeometry:
    """`size` fp8 numbers and a float32 scale for each 128 of them, whatever the cache dtype."""
    return CacheGeometry(
        name=f"model.layers.{layer}.self_attn.indexer.k_cache",
        layer=layer,
        spec="mla",
        fields={"head_size": size + size // 128 * 4, "dtype": "uint8"},
    )


def indexed_caches(config: Config) -> list[CacheGeometry]:
    """The latent row, and the indexer's key beside it."""
    size = config.count("index_head_dim")
    return [
        cache
        for latent in latent_caches(config)
        for cache in (latent, indexer_cache(latent.layer, size))
    ]


# --- weights ---------------------------------------------------------------------------------
def latent_attention(config: Config, layer: int) -> list[Weight]:
    """Down to the latents (on every rank), up to the heads, and back."""
    hidden, heads = config.hidden_size, config.num_heads
    latent, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    nope, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    up, bias = partial(linear, layer=layer, split=0, parts=heads), config.flag("attention_bias")
    return [
        *queries(config, layer, heads * (nope + rope)),
        *linear("self_attn.kv_a_proj", latent + rope, hidden, layer=layer, bias=bias),
        *norm("self_attn.kv_a_layernorm", latent, layer=layer),
        *up("self_attn.kv_b_proj", heads * (nope + value), latent),
        *linear(
            "self_attn.o_proj", hidden, heads * value, layer=layer, split=1, parts=heads, bias=bias
        ),
    ]


def queries(config: Config, layer: int, rows: int) -> list[Weight]:
    """Through a latent of q_lora_rank, or straight where that is null."""
    rank, up = config.number("q_lora_rank"), partial(linear, layer=layer, split=0)
    bias = config.flag("attention_bias")
    if not rank:
        return up("self_attn.q_proj", rows, config.hidden_size, parts=config.num_heads)
    return [
        *linear("self_attn.q_a_proj", rank, config.hidden_size, layer=layer, bias=bias),
        *norm("self_attn.q_a_layernorm", rank, layer=layer),
        *up("self_attn.q_b_proj", rows, rank, parts=config.num_heads),
    ]


def deepseek_block(config: Config, layer: int) -> list[Weight]:
    return [
        *latent_attention(config, layer),
        *dense_then_experts(config, layer),
        *norms(config, layer),
    ]


def indexed_block(config: Config, layer: int) -> list[Weight]:
    """V3.2: the indexer's queries come from the query latent, its one key from the hidden state."""
    heads, size = config.count("index_n_heads"), config.count("index_head_dim")
    rank, hidden = config.count("q_lora_rank"), config.hidden_size
    return [
        *deepseek_block(config, layer),
        *linear("self_attn.indexer.wq_b", heads * size, rank, layer=layer),
        *linear("self_attn.indexer.wk", size, hidden, layer=layer),
        *norm("self_attn.indexer.k_norm", size, layer=layer, bias=True),
        *linear("self_attn.indexer.weights_proj", heads, hidden, layer=layer, quantized=False),
    ]


V2 = {
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
}
V3 = V2 | {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "max_position_embeddings": 4096,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}
V3_2 = V3 | {"index_n_heads": 64, "index_head_dim": 128, "max_position_embeddings": 163840}

latent = partial(decoder, block=deepseek_block)

FAMILIES = {
    "deepseek_v2": Family(caches=latent_caches, weights=latent, defaults=V2),
    "deepseek_v3": Family(caches=latent_caches, weights=latent, defaults=V3),
    "kimi_k2": Family(caches=latent_caches, weights=latent, like="deepseek_v3"),
    "deepseek_v32": Family(
        caches=indexed_caches, weights=partial(decoder, block=indexed_block), defaults=V3_2
    ),
}
