"""DeepSeek and its kin: multi-head latent attention (arXiv:2405.04434), one row a token and layer.

The row has kv_lora_rank latent and qk_rope_head_dim rope numbers. The file's `head_dim` (the rope
size) and `num_key_value_heads` describe something else. V3.2 adds an indexer with its own cache.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import attention_caches
from kvpipe.models.families.experts import dense_then_experts
from kvpipe.models.families.weights import attention, decoder, linear, norm, norms


# --- caches ----------------------------------------------------------------------------------
def latent_cache(config: Config, layer: int, name: str = "self_attn.attn") -> CacheGeometry:
    """One row: a rope part of no numbers is allowed."""
    row = config.count("kv_lora_rank") + config.number("qk_rope_head_dim")
    name = f"model.layers.{layer}.{name}"
    return CacheGeometry(name=name, layer=layer, spec="mla", fields={"head_size": row})


def latent_caches(config: Config) -> list[CacheGeometry]:
    return [latent_cache(config, i) for i in range(config.num_layers)]


def latent_or_plain_caches(config: Config) -> list[CacheGeometry]:
    """The language part of DeepSeek-VL2-tiny and DeepSeek-OCR is a DeepSeek-V2 with plain K/V
    (use_mla false; vllm/model_executor/models/deepseek_v2.py)."""
    if config.flag("use_mla", True):
        return latent_caches(config)
    size = config.hidden_size // config.num_heads
    return attention_caches(config.having(head_dim=size))


def expanded_caches(config: Config) -> list[CacheGeometry]:
    """MiniCPM3 projects through latents, but an engine stores K and V of every head, V padded to
    K's width (vllm/model_executor/models/minicpm3.py)."""
    size = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    return attention_caches(config.having(num_key_value_heads=config.num_heads, head_dim=size))


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
    return [
        cache
        for layer, own in enumerate(own_indexers(config))
        for cache in indexed_layer(config, layer, own_indexer=own)
    ]


def indexed_layer(config: Config, layer: int, *, own_indexer: bool = True) -> list[CacheGeometry]:
    index = indexer_cache(layer, config.count("index_head_dim"))
    return [latent_cache(config, layer), *([index] if own_indexer else [])]


def own_indexers(config: Config) -> list[bool]:
    """Whether each layer has an indexer of its own, or takes an earlier one's choice of tokens."""
    kinds = config.words("indexer_types")
    if kinds is None:
        return [True] * config.num_layers
    if len(kinds) != config.num_layers or not set(kinds) <= {"full", "shared"}:
        raise unreadable("indexer_types", f"{config.num_layers} of full and shared", kinds)
    return [kind == "full" for kind in kinds]


def hunyuan4_caches(config: Config) -> list[CacheGeometry]:
    """Without the list, the first layer and every fourth after it have an indexer."""
    if config.words("indexer_types") is None:
        kinds = [
            "full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(config.num_layers)
        ]
        config = config.having(indexer_types=kinds)
    return indexed_caches(config)


def scheduled(config: Config) -> Config:
    """Indexers by a pattern ("FSSF"), or by a frequency that begins at an offset."""
    if config.words("indexer_types") is not None:
        return config
    pattern, layers = config.word("index_topk_pattern"), config.num_layers
    every = max(config.number("index_topk_freq", 1), 1)
    start = config.number("index_skip_topk_offset", 2)
    kinds = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern] or [
        "shared" if max(i - start + 1, 0) % every else "full" for i in range(layers)
    ]
    return config.having(indexer_types=kinds)


def rope_layers(config: Config) -> list[bool]:
    """no_rope_layers has 1 where there IS rope; without it, every fourth layer has none."""
    listed, layers = config.numbers("no_rope_layers"), config.num_layers
    every = config.count("no_rope_layer_interval", 4)
    listed = listed or [int((i + 1) % every != 0) for i in range(layers)]
    if len(listed) != layers:
        raise unreadable("no_rope_layers", f"{layers} entries", len(listed))
    return [bool(rope) for rope in listed]


def mistral_large4_caches(config: Config) -> list[CacheGeometry]:
    """Layers without rope store the latent alone; a layer may read the rows of another
    (kv_source_layers)."""
    config = scheduled(config)
    own, roped = own_indexers(config), rope_layers(config)
    parts = [config if rope else config.having(qk_rope_head_dim=0) for rope in roped]
    caches = [
        cache
        for i, part in enumerate(parts)
        for cache in indexed_layer(part, i, own_indexer=own[i])
    ]
    sources = config.numbers("kv_source_layers")
    if sources is None:
        return caches
    if len(sources) != config.num_layers or any(s > i for i, s in enumerate(sources)):
        expected = f"{config.num_layers} layers, none after the one that reads it"
        raise unreadable("kv_source_layers", expected, sources)
    names = [latent.name for latent in latent_caches(config)]
    shares = {names[i]: names[s] for i, s in enumerate(sources) if i != s}
    return [replace(cache, shares_with=shares.get(cache.name)) for cache in caches]


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


def latent_or_plain_block(config: Config, layer: int) -> list[Weight]:
    if config.flag("use_mla", True):
        return deepseek_block(config, layer)
    sized = config.having(head_dim=config.hidden_size // config.num_heads)
    return [
        *attention(sized, layer, bias=config.flag("attention_bias")),
        *dense_then_experts(config, layer),
        *norms(config, layer),
    ]


def axk1_block(config: Config, layer: int) -> list[Weight]:
    """A norm more after experts."""
    weights = deepseek_block(config, layer)
    is_sparse = any(weight.name.startswith("mlp.experts") for weight in weights)
    return [*weights, *(norms(config, layer, 1, name="post") if is_sparse else [])]


def minicpm3_weights(config: Config) -> list[Weight]:
    """Heads of V are those of the hidden size, where the file does not say."""
    value = config.count("v_head_dim", config.hidden_size // config.num_heads)
    return decoder(config.having(v_head_dim=value), deepseek_block)


def indexed_block(config: Config, layer: int) -> list[Weight]:
    """V3.2: the indexer's queries come from the query latent, its one key from the hidden state."""
    if not own_indexers(config)[layer]:
        return deepseek_block(config, layer)
    heads, size = config.count("index_n_heads"), config.count("index_head_dim")
    rank, hidden = config.count("q_lora_rank"), config.hidden_size
    return [
        *deepseek_block(config, layer),
        *linear("self_attn.indexer.wq_b", heads * size, rank, layer=layer),
        *linear("self_attn.indexer.wk", size, hidden, layer=layer),
        *norm("self_attn.indexer.k_norm", size, layer=layer, bias=True),
        *linear("self_attn.indexer.weights_proj", heads, hidden, layer=layer, quantized=False),
    ]


latent = partial(decoder, block=deepseek_block)
indexed = partial(decoder, block=indexed_block)
OTHERS = "mistral4 sarvam_mla youtu"
# Engines read the schedule of indexers of both (vLLM, deepseek_v2.py, 0.28 to 0.33).
INDEXED = Family(
    caches=lambda config: indexed_caches(scheduled(config)),
    weights=lambda config: indexed(scheduled(config)),
    aliases={"n_routed_experts": "num_experts"},
)

FAMILIES = {
    "deepseek_v2": Family(
        caches=latent_or_plain_caches, weights=partial(decoder, block=latent_or_plain_block)
    ),
    "deepseek_v3": Family(caches=latent_caches, weights=latent),
    **{name: Family(caches=latent_caches, weights=latent) for name in OTHERS.split()},
    "glm4_moe_lite": Family(
        caches=latent_caches, weights=latent, defaults={"first_k_dense_replace": 1}
    ),
    "minicpm3": Family(caches=expanded_caches, weights=minicpm3_weights),
    "axk1": Family(
        caches=latent_caches,
        weights=partial(decoder, block=axk1_block),
        defaults={"first_k_dense_replace": 1},
    ),
    "axk2": Family(caches=indexed_caches),
    "glm_moe_dsa": INDEXED,
    "hy_v4": Family(caches=hunyuan4_caches),
    "hy_v4_vl_text": Family(caches=hunyuan4_caches),
    "mistral_large4_text": Family(caches=mistral_large4_caches),
    "kimi_k2": Family(caches=latent_caches, weights=latent, like="deepseek_v3"),
    "deepseek_v32": INDEXED,
}
