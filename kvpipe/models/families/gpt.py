"""GPT-2 and its generation: layer norms with biases, plain MLPs, names of their own for every key.

GPT-2, GPT-J, GPT-NeoX (arXiv:2204.06745), OPT (arXiv:2205.01068), BLOOM (arXiv:2211.05100), Falcon
(arXiv:2311.16867), MPT, Phi-2, StarCoder (arXiv:2305.06161).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.caches import attention_caches
from kvpipe.models.families.weights import attention, decoder, linear, mlp, norm, norms, qkv, vector


def one_head_caches(config: Config) -> list[CacheGeometry]:
    """GPT-BigCode: one K/V head for all queries, unless multi_query is false."""
    heads = 1 if config.flag("multi_query", True) else config.num_heads
    one_head = config.having(num_key_value_heads=heads)
    return attention_caches(one_head, prefix="transformer.h", name="attn.attn")


def falcon_kv_heads(config: Config) -> int:
    """The new architecture has num_kv_heads; the old one has 1 (multi_query) or all, whatever the
    key says."""
    if config.flag("new_decoder_architecture"):
        return config.count("num_kv_heads", config.num_heads)
    return 1 if config.flag("multi_query", True) else config.num_heads


def falcon_caches(config: Config) -> list[CacheGeometry]:
    grouped = config.having(num_key_value_heads=falcon_kv_heads(config))
    return attention_caches(grouped, prefix="transformer.h", name="self_attention.attn")


def mpt_kv_heads(config: Config) -> int:
    """attn_config.kv_n_heads where the checkpoint groups its queries."""
    return config.section("attn_config").count("kv_n_heads", config.num_heads)


def mpt_caches(config: Config) -> list[CacheGeometry]:
    grouped = config.having(num_key_value_heads=mpt_kv_heads(config))
    return attention_caches(grouped, prefix="transformer.blocks", name="attn.attn")


# --- weights ---------------------------------------------------------------------------------
def inner_size(config: Config) -> int:
    """Null or missing: four times the hidden size."""
    return config.count("n_inner", 4 * config.hidden_size)


def gpt2_block(config: Config, layer: int) -> list[Weight]:
    return [
        *attention(config, layer, bias=True),
        *mlp(config, layer, inner_size(config), gated=False, bias=True),
        *norms(config, layer, bias=True),
    ]


def bigcode_block(config: Config, layer: int) -> list[Weight]:
    heads = 1 if config.flag("multi_query", True) else config.num_heads
    return gpt2_block(config.having(num_key_value_heads=heads), layer)


def with_positions(config: Config, weights: list[Weight], extra: int = 0) -> list[Weight]:
    """Learnt positions beside the embedding; some tables keep `extra` unused rows in front."""
    rows = config.count("max_position_embeddings") + extra
    return [vector("position_embedding", rows, config.hidden_size), *weights]


def gpt2_weights(config: Config) -> list[Weight]:
    return with_positions(config, decoder(config, gpt2_block, norm_bias=True))


def bigcode_weights(config: Config) -> list[Weight]:
    return with_positions(config, decoder(config, bigcode_block, norm_bias=True))


def gptj_block(config: Config, layer: int) -> list[Weight]:
    """Attention (no biases) and MLP (biases) side by side under one norm."""
    return [
        *attention(config, layer),
        *mlp(config, layer, inner_size(config), gated=False, bias=True),
        *norms(config, layer, 1, bias=True),
    ]


def neox_block(config: Config, layer: int) -> list[Weight]:
    return [
        *attention(config, layer, bias=config.flag("attention_bias", True)),
        *mlp(config, layer, config.intermediate_size, gated=False, bias=True),
        *norms(config, layer, bias=True),
    ]


def phi_block(config: Config, layer: int) -> list[Weight]:
    """Side by side under one norm, biases everywhere; q and k may be normed a head."""
    qk_norms = [
        n for p in "qk" for n in norm(f"{p}_layernorm", config.head_size, layer=layer, bias=True)
    ]
    return [
        *attention(config, layer, bias=True),
        *mlp(config, layer, config.intermediate_size, gated=False, bias=True),
        *norms(config, layer, 1, bias=True),
        *(qk_norms if config.flag("qk_layernorm") else []),
    ]


def opt_block(config: Config, layer: int) -> list[Weight]:
    bias = config.flag("enable_bias", True)
    return [
        *attention(config, layer, bias=bias),
        *mlp(config, layer, config.count("ffn_dim"), gated=False, bias=bias),
        *norms(config, layer, bias=True),
    ]


def opt_weights(config: Config) -> list[Weight]:
    """Two unused position rows. OPT-350M embeds narrower and has no final norm."""
    weights = decoder(config, opt_block, norm_bias=True)
    width, hidden = config.count("word_embed_proj_dim", config.hidden_size), config.hidden_size
    if not config.flag("do_layer_norm_before", True) or config.flag("_remove_final_layer_norm"):
        weights = [w for w in weights if not w.name.startswith("model.norm")]
    if not config.flag("layer_norm_elementwise_affine", True):
        weights = [w for w in weights if not w.name.startswith(("model.norm", "norm."))]
    if width != hidden:
        embedding = replace(weights[0], shape=(config.count("vocab_size"), width))
        ins_and_outs = [
            *linear("project_in", hidden, width),
            *linear("project_out", width, hidden),
        ]
        weights = [embedding, *ins_and_outs, *weights[1:]]
    return with_positions(config, weights, extra=2)


def bloom_block(config: Config, layer: int) -> list[Weight]:
    return [
        *attention(config, layer, bias=True),
        *mlp(config, layer, 4 * config.hidden_size, gated=False, bias=True),
        *norms(config, layer, bias=True),
    ]


def bloom_weights(config: Config) -> list[Weight]:
    after_embedding = norm("word_embeddings_layernorm", config.hidden_size, bias=True)
    return [*decoder(config, bloom_block, norm_bias=True), *after_embedding]


def falcon_block(config: Config, layer: int) -> list[Weight]:
    """One norm a layer, but two in the new architecture or when attention comes before the MLP."""
    grouped = config.having(num_key_value_heads=falcon_kv_heads(config))
    new, bias = config.flag("new_decoder_architecture"), config.flag("bias")
    side_by_side = config.flag("parallel_attn", True)
    number = config.choice("num_ln_in_parallel_attn", (1, 2))
    number = number or (2 if new or not side_by_side else 1)
    width = config.count("ffn_hidden_size", 4 * config.hidden_size)
    return [
        *attention(grouped, layer, bias=bias),
        *mlp(config, layer, width, gated=False, bias=bias),
        *norms(config, layer, number, bias=True),
    ]


def mpt_block(config: Config, layer: int) -> list[Weight]:
    """No biases, not even in the norms."""
    columns = config.num_heads * config.head_size
    width = config.count("expansion_ratio", 4) * config.hidden_size
    o = linear("attn.out_proj", config.hidden_size, columns, layer=layer, split=1)
    grouped = config.having(num_key_value_heads=mpt_kv_heads(config))
    return [
        *qkv(grouped, layer, name="attn"),
        *o,
        *mlp(config, layer, width, gated=False),
        *norms(config, layer),
    ]


GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
OPT = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "ffn_dim": 3072,
    "word_embed_proj_dim": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
BLOOM = {
    "vocab_size": 250880,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,  # what it was trained on: ALiBi has no table
    "tie_word_embeddings": True,
}
MPT = {
    "vocab_size": 50368,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}

transformer_h = partial(attention_caches, prefix="transformer.h", name="attn.attn")

FAMILIES = {
    **dict.fromkeys(
        ("gpt2", "gpt-sw3"),
        Family(caches=transformer_h, weights=gpt2_weights, aliases=GPT2_NAMES),
    ),
    "gpt_bigcode": Family(caches=one_head_caches, weights=bigcode_weights, aliases=GPT2_NAMES),
    "gptj": Family(
        caches=transformer_h,
        weights=partial(decoder, block=gptj_block, norm_bias=True, head_bias=True),
        aliases=GPT2_NAMES,
    ),
    "gpt_neox": Family(
        caches=partial(attention_caches, prefix="gpt_neox.layers", name="attention.attn"),
        weights=partial(decoder, block=neox_block, norm_bias=True),
    ),
    "phi": Family(
        caches=attention_caches,
        weights=partial(decoder, block=phi_block, norm_bias=True, head_bias=True),
    ),
    "opt": Family(
        caches=partial(attention_caches, prefix="model.decoder.layers"),
        weights=opt_weights,
    ),
    "bloom": Family(
        caches=partial(attention_caches, prefix="transformer.h", name="self_attention.attn"),
        weights=bloom_weights,
        defaults={"max_position_embeddings": 2048},
        aliases={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "hidden_size": "n_embed",
        },
    ),
    "falcon": Family(
        caches=falcon_caches,
        weights=partial(decoder, block=falcon_block, norm_bias=True),
        aliases={"hidden_size": "n_embed"},
    ),
    "mpt": Family(
        caches=mpt_caches,
        weights=partial(decoder, block=mpt_block),
        aliases={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
    ),
}
