"""DeepSeek-V4: a window of rows beside rows that stand for 4 or 128 tokens.

Every layer keeps the last W rows. One that compresses adds a row for every `rate` tokens, and the
projections of tokens that are in no row yet: `state_cache`, a window of `rate` tokens, twice that
where groups overlap. Rows that stand for 4 tokens are chosen by an indexer with compressed keys of
its own. How an engine stores that, and in blocks of how many tokens: vLLM 0.28 to 0.33,
models/deepseek_v4/attention.py, compressor.py, v1/attention/backends/mla/sparse_swa.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.deepseek import indexer_cache, queries
from kvpipe.models.families.experts import routed
from kvpipe.models.families.weights import decoder, linear, mlp, norm, norms, vector

WINDOW, SPARSE, HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_RATES = {SPARSE: 4, HEAVY: 128}
_OLD_KEYS = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
# Published files say the rate of each layer instead of its kind, prediction layers included.
_BY_RATE = {0: WINDOW, 4: SPARSE, 128: HEAVY}
_WINDOW_BLOCK = 64  # tokens of a block of the window
_STATE_BLOCKS = {SPARSE: 4, HEAVY: 8}  # ... of a state: its page is then as large as the others
_PACKED = {"packed_bytes": 584, "alignment": 576}  # 448 fp8, 64 bfloat16, 8 of scales


def kinds(config: Config) -> list[str]:
    """Of each layer: as listed, by the list of rates, or two heavy ones and then in turn."""
    layers, listed = config.num_layers, config.words("layer_types")
    rates = config.numbers("compress_ratios")
    if listed is None and rates is not None:
        listed = [_BY_RATE.get(rate, str(rate)) for rate in rates]
    if listed is None:
        return [HEAVY] * min(2, layers) + [SPARSE if i % 2 else HEAVY for i in range(layers - 2)]
    key = "layer_types" if rates is None else "compress_ratios"
    if len(listed) < layers or not {WINDOW, SPARSE, HEAVY}.issuperset(listed[:layers]):
        raise unreadable(key, f"{layers} layers, each of a kind that DeepSeek-V4 has", listed)
    return listed[:layers]


def rate(config: Config, kind: str) -> int:
    """Tokens that one row stands for."""
    own = config.section("compress_rates").count(kind, _RATES[kind])
    found = config.count(_OLD_KEYS[kind], own)
    if found != _RATES[kind]:  # blocks of states are known for these alone
        raise unreadable(f"compress_rates.{kind}", f"{_RATES[kind]} tokens a row", found)
    return found


# --- caches ----------------------------------------------------------------------------------
def caches(config: Config) -> list[CacheGeometry]:
    return [cache for i, kind in enumerate(kinds(config)) for cache in _of_layer(config, i, kind)]


def _of_layer(config: Config, layer: int, kind: str) -> list[CacheGeometry]:
    cache = partial(_cache, layer)
    window, size = config.count("sliding_window"), config.head_size
    held = {"sliding_window": window, "block_size": _WINDOW_BLOCK, "head_size": size}
    found = [cache("swa_cache", "sliding_mla", {**held, **_PACKED})]
    if kind == WINDOW:
        return found
    tokens = rate(config, kind)
    rows = {"head_size": size, "tokens_per_state": tokens, **_PACKED}
    found += [cache("", "mla", rows), cache("compressor.state_cache", *_state(kind, size))]
    if kind == SPARSE:
        keys = config.count("index_head_dim")
        fields = {**indexer_cache(layer, keys).fields, "tokens_per_state": tokens}
        found.append(cache("indexer.k_cache", "mla", {**fields, "alignment": 576}))
        found.append(cache("indexer.compressor.state_cache", *_state(kind, keys)))
    return found


def _state(kind: str, size: int) -> tuple[str, Mapping[str, object]]:
    """A projection and its score of each token of the group that is not full, in float32; of two
    groups, each projected twice, where groups overlap."""
    groups = 2 if kind == SPARSE else 1
    return "sliding_mla", {
        "head_size": 2 * groups * size,
        "sliding_window": groups * _RATES[kind],
        "block_size": _STATE_BLOCKS[kind],
        "dtype": "float32",
        "alignment": 576,
    }


def _cache(layer: int, part: str, spec: str, fields: Mapping[str, object]) -> CacheGeometry:
    name = f"model.layers.{layer}.attn" + (f".{part}" if part else "")
    return CacheGeometry(name=name, layer=layer, spec=spec, fields=fields)


# --- weights ---------------------------------------------------------------------------------
def block(config: Config, layer: int) -> list[Weight]:
    width, shared = config.count("moe_intermediate_size"), config.number("n_shared_experts")
    return [
        *attention(config, layer),
        *compressed(config, layer, kinds(config)[layer]),
        *routed(config, layer, config.count("n_routed_experts"), width),
        *(mlp(config, layer, width, name="mlp.shared_experts") if shared else []),
        *norms(config, layer),
        *(w for name in ("attn_hc", "ffn_hc") for w in hyper_connection(config, layer, name)),
    ]


def attention(config: Config, layer: int) -> list[Weight]:
    """One row for keys and values; the output goes through o_groups latents of o_lora_rank."""
    hidden, heads, size = config.hidden_size, config.num_heads, config.head_size
    groups, latent = config.count("o_groups"), config.count("o_lora_rank")
    up = partial(linear, layer=layer, parts=groups)
    return [
        *queries(config, layer, heads * size),
        *linear("self_attn.kv_proj", size, hidden, layer=layer),
        *norm("self_attn.kv_norm", size, layer=layer),
        *up("self_attn.o_a_proj", groups * latent, heads * size // groups, split=0),
        *up("self_attn.o_b_proj", hidden, groups * latent, split=1),
        vector("self_attn.sinks", heads, layer=layer, split=0),
    ]


def compressed(config: Config, layer: int, kind: str) -> list[Weight]:
    if kind == WINDOW:
        return []
    name = "self_attn.compressor"
    found = compressor(config, layer, kind, config.head_size, name)
    if kind == HEAVY:
        return found
    keys, heads = config.count("index_head_dim"), config.count("index_n_heads")
    indexer = partial(linear, layer=layer)
    return [
        *found,
        *compressor(config, layer, kind, keys, f"{name}.indexer"),
        *indexer(f"{name}.indexer.q_b_proj", heads * keys, config.count("q_lora_rank")),
        *indexer(f"{name}.indexer.weights_proj", heads, config.hidden_size, quantized=False),
    ]


def compressor(config: Config, layer: int, kind: str, size: int, name: str) -> list[Weight]:
    """A projection, its score, and a bias of the score for each place in a group."""
    wide = 2 * size if kind == SPARSE else size
    matrix = partial(linear, layer=layer, quantized=False)
    return [
        *matrix(f"{name}.kv_proj", wide, config.hidden_size),
        *matrix(f"{name}.gate_proj", wide, config.hidden_size),
        vector(f"{name}.position_bias", rate(config, kind), wide, layer=layer),
        *norm(f"{name}.kv_norm", size, layer=layer),
    ]


def hyper_connection(config: Config, layer: int, name: str) -> list[Weight]:
    """hc_mult streams are mixed into one and back (arXiv:2409.19606)."""
    streams = config.count("hc_mult")
    rows = (2 + streams) * streams
    return [
        vector(f"{name}.fn", rows, streams * config.hidden_size, layer=layer),
        vector(f"{name}.base", rows, layer=layer),
        vector(f"{name}.scale", 3, layer=layer),
    ]


def weights(config: Config) -> list[Weight]:
    streams = config.count("hc_mult")
    head = [
        vector("hc_head.fn", streams, streams * config.hidden_size),
        vector("hc_head.base", streams),
        vector("hc_head.scale", 1),
    ]
    return [*decoder(config, block), *head]


def in_prediction(cache: CacheGeometry) -> bool:
    """Prediction layers compress nothing."""
    return cache.name.endswith(".swa_cache")


FAMILIES = {
    "deepseek_v4": Family(
        caches=caches,
        weights=weights,
        defaults={"expert_dtype": "fp4"},  # what vLLM takes a file for that does not say
        kv_dtype="fp8_ds_mla",
        predicts=in_prediction,
    )
}
