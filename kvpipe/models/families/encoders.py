"""Encoders, alone or before a decoder. Encoder layers store nothing; decoder layers store their own
K/V and, once a request, K/V of the encoder's output.

Whisper (arXiv:2212.04356), BART (arXiv:1910.13461), T5 (arXiv:1910.10683), Longformer
(arXiv:2004.05150), BERT (arXiv:1810.04805).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvpipe.models._values import BY_HAND, PROBE_HINT
from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.weights import linear, norm, vector


# --- caches ----------------------------------------------------------------------------------
def decoder_caches(
    layers: int, heads: int, head_size: int, prefix: str = "model.decoder.layers"
) -> list[CacheGeometry]:
    """Self and cross attention of every decoder layer."""
    fields = {"num_kv_heads": heads, "head_size": head_size}
    return [
        CacheGeometry(name=f"{prefix}.{i}.{name}", layer=i, spec=spec, fields=fields)
        for i in range(layers)
        for name, spec in (("self_attn.attn", "full"), ("encoder_attn.attn", "cross"))
    ]


def bart_decoder_layers(config: Config) -> int:
    """num_hidden_layers, where a file has it, is the encoder's."""
    return config.layers("decoder_layers")


def bart_caches(config: Config) -> list[CacheGeometry]:
    heads = config.count("decoder_attention_heads")
    head_size = config.hidden_size // heads
    return decoder_caches(bart_decoder_layers(config), heads, head_size)


def t5_caches(config: Config) -> list[CacheGeometry]:
    """Heads of d_kv, whose product with their number need not be d_model."""
    heads, head_size = config.count("num_heads"), config.count("d_kv")
    return decoder_caches(t5_decoder_layers(config), heads, head_size, "decoder.block")


def t5_decoder_layers(config: Config) -> int:
    """Without the key, or null: as many as the encoder has."""
    return config.layers("num_decoder_layers", config.layers("num_layers"))


# Those that transformers cannot run on the meta device when they decode: they read values.
_READS_VALUES = ("big_bird", "megatron-bert", "rembert", "roformer", "xmod")


def as_decoder(model_type: str) -> str:
    """What helps where an encoder is asked to decode."""
    return BY_HAND if model_type in _READS_VALUES else PROBE_HINT


def encoder_caches(config: Config) -> list[CacheGeometry]:
    """BERT may be asked to decode; then it is not one of these."""
    if config.flag("is_decoder"):
        raise unreadable("is_decoder", "an encoder", "true", as_decoder(config.word("model_type")))
    fields = {"num_kv_heads": config.num_heads, "head_size": config.head_size}
    return [
        CacheGeometry(
            name=f"encoder.layer.{i}.attention.self", layer=i, spec="encoder_only", fields=fields
        )
        for i in range(config.num_layers)
    ]


# --- weights: BART and Whisper ------------------------------------------------------------------
def cross_capable_attention(width: int, layer: int, name: str, *, k_bias: bool) -> list[Weight]:
    up = partial(linear, layer=layer, split=0)
    return [
        *up(f"{name}.q_proj", width, width, bias=True),
        *up(f"{name}.k_proj", width, width, bias=k_bias),
        *up(f"{name}.v_proj", width, width, bias=True),
        *linear(f"{name}.out_proj", width, width, layer=layer, split=1, bias=True),
        *norm(f"{name}_layer_norm", width, layer=layer, bias=True),
    ]


def bart_stack(config: Config, side: str, *, k_bias: bool) -> list[Weight]:
    """All layers of `side` ("encoder" or "decoder"); the decoder's attend twice."""
    width, inner = config.count("d_model"), config.count(f"{side}_ffn_dim")
    names = ["self_attn"] if side == "encoder" else ["self_attn", "encoder_attn"]
    weights = []
    for layer in range(config.layers(f"{side}_layers")):
        for name in names:
            weights += cross_capable_attention(width, layer, f"{side}.{name}", k_bias=k_bias)
        weights += linear(f"{side}.fc1", inner, width, layer=layer, split=0, bias=True)
        weights += linear(f"{side}.fc2", width, inner, layer=layer, split=1, bias=True)
        weights += norm(f"{side}.final_layer_norm", width, layer=layer, bias=True)
    return weights


def shared_embedding(config: Config) -> list[Weight]:
    """One table for both sides and the head, unless the file unties the head."""
    shape = (config.count("vocab_size"), config.count("d_model"))
    table = Weight(name="shared.weight", shape=shape, split=0)
    own_head = Weight(name="lm_head.weight", shape=shape, split=0, last=True)
    return [table] if config.flag("tie_word_embeddings") else [table, own_head]


def bart_embeddings(config: Config) -> list[Weight]:
    """Where nothing is tied, each side has a table beside the shared one."""
    shared = shared_embedding(config)
    if config.flag("tie_word_embeddings"):
        return shared
    return [
        *shared,
        *(replace(shared[0], name=f"{s}.embed_tokens") for s in ("encoder", "decoder")),
    ]


def bart_weights(
    config: Config, *, more_rows: int | None = 2, first_norm: bool = True, last_norm: bool = False
) -> list[Weight]:
    """more_rows: unused ones of the position tables (None: positions are computed). first_norm:
    after each embedding; last_norm: after each side's last layer."""
    width, sides = config.count("d_model"), ("encoder", "decoder")
    rows = config.count("max_position_embeddings") + (more_rows or 0)
    tables = [] if more_rows is None else [(f"{side}.embed_positions", rows) for side in sides]
    kinds = ("layernorm_embedding",) * first_norm + ("layer_norm",) * last_norm
    return [
        *bart_embeddings(config),
        *(vector(name, rows, width) for name, rows in tables),
        *(w for kind in kinds for side in sides for w in norm(f"{side}.{kind}", width, bias=True)),
        *bart_stack(config, "encoder", k_bias=True),
        *bart_stack(config, "decoder", k_bias=True),
    ]


def whisper_weights(config: Config) -> list[Weight]:
    """Two convolutions over mel bins; k has no bias; a final norm on each side."""
    width, bins = config.count("d_model"), config.count("num_mel_bins")
    return [
        *shared_embedding(config),
        vector("encoder.conv1.weight", width, bins, 3),
        vector("encoder.conv1.bias", width),
        vector("encoder.conv2.weight", width, width, 3),
        vector("encoder.conv2.bias", width),
        vector("encoder.embed_positions", config.count("max_source_positions"), width),
        vector("decoder.embed_positions", config.count("max_position_embeddings"), width),
        *norm("encoder.layer_norm", width, bias=True),
        *norm("decoder.layer_norm", width, bias=True),
        *bart_stack(config, "encoder", k_bias=False),
        *bart_stack(config, "decoder", k_bias=False),
    ]


# --- weights: T5 -----------------------------------------------------------------------------
def t5_layer(config: Config, layer: int, side: str) -> list[Weight]:
    width, inner = config.count("d_model"), config.count("num_heads") * config.count("d_kv")
    attentions = ["SelfAttention"] if side == "encoder" else ["SelfAttention", "EncDecAttention"]
    gated = config.word("feed_forward_proj", "relu").startswith("gated-")
    up = partial(linear, layer=layer, split=0)
    return [
        *(
            weight
            for name in attentions
            for weight in (
                *(w for part in "qkv" for w in up(f"{side}.{name}.{part}", inner, width)),
                *linear(f"{side}.{name}.o", width, inner, layer=layer, split=1),
                *norm(f"{side}.{name}.layer_norm", width, layer=layer),
            )
        ),
        *(w for i in range(1 + gated) for w in up(f"{side}.wi_{i}", config.count("d_ff"), width)),
        *linear(f"{side}.wo", width, config.count("d_ff"), layer=layer, split=1),
        *norm(f"{side}.layer_norm", width, layer=layer),
    ]


def t5_weights(config: Config, *, biases_everywhere: bool = False) -> list[Weight]:
    """Relative position biases in the first layer of each side, or in every one. The class ties the
    head, whatever the file says."""
    counts = {
        "encoder": config.layers("num_layers"),
        "decoder": t5_decoder_layers(config),
    }
    buckets, heads = config.count("relative_attention_num_buckets"), config.count("num_heads")
    return [
        *shared_embedding(config.having(tie_word_embeddings=True)),
        *(
            weight
            for side, layers in counts.items()
            for weight in (
                *(
                    vector(f"{side}.relative_attention_bias", buckets, heads, layer=i)
                    for i in range(layers if biases_everywhere else 1)
                ),
                *(w for layer in range(layers) for w in t5_layer(config, layer, side)),
                *norm(f"{side}.final_layer_norm", config.count("d_model")),
            )
        ),
    ]


# --- weights: BERT and Longformer ----------------------------------------------------------------
def bert_layer(config: Config, layer: int, projections: tuple[str, ...]) -> list[Weight]:
    width, inner = config.hidden_size, config.intermediate_size
    up = partial(linear, layer=layer, split=0, bias=True)
    return [
        *(w for name in projections for w in up(f"attention.self.{name}", width, width)),
        *linear("attention.output.dense", width, width, layer=layer, split=1, bias=True),
        *norm("attention.output.LayerNorm", width, layer=layer, bias=True),
        *up("intermediate.dense", inner, width),
        *linear("output.dense", width, inner, layer=layer, split=1, bias=True),
        *norm("output.LayerNorm", width, layer=layer, bias=True),
    ]


def bert_weights(config: Config, *, projections: tuple[str, ...]) -> list[Weight]:
    width = config.hidden_size
    rows = {
        "word": config.count("vocab_size"),
        "position": config.count("max_position_embeddings"),
        "token_type": config.count("type_vocab_size"),
    }
    return [
        *(vector(f"embeddings.{name}_embeddings", n, width) for name, n in rows.items()),
        *norm("embeddings.LayerNorm", width, bias=True),
        *(w for i in range(config.num_layers) for w in bert_layer(config, i, projections)),
        *linear("pooler.dense", width, width, bias=True),
    ]


BART = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "d_model": 1024,
    "tie_word_embeddings": True,
}
T5 = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "max_position_embeddings": 512,  # what it was trained on: relative positions have no end
}
BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
BART_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
}
WHISPER_NAMES = BART_NAMES | {"max_position_embeddings": "max_target_positions"}
T5_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "n_positions",
}
# Masked language models: encoders unless a file says is_decoder.
_ENCODERS = """
big_bird camembert data2vec-text electra ernie megatron-bert rembert
roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod
"""
QKV = ("query", "key", "value")

FAMILIES = {
    "whisper": Family(
        caches=bart_caches,
        weights=whisper_weights,
        aliases=WHISPER_NAMES,
        num_layers=bart_decoder_layers,
        encoder_tokens=lambda config: config.count("max_source_positions"),
    ),
    "bart": Family(
        caches=bart_caches,
        weights=bart_weights,
        aliases=BART_NAMES,
        num_layers=bart_decoder_layers,
        encoder_tokens=lambda config: config.count("max_position_embeddings"),
    ),
    "t5": Family(
        caches=t5_caches,
        weights=t5_weights,
        defaults={"max_position_embeddings": 512},
        aliases=T5_NAMES,
        num_layers=t5_decoder_layers,
        encoder_tokens=lambda config: config.count("max_position_embeddings"),
    ),
    "longformer": Family(
        caches=encoder_caches,
        weights=partial(bert_weights, projections=(*QKV, *(f"{name}_global" for name in QKV))),
    ),
    **{name: Family(caches=encoder_caches) for name in _ENCODERS.split()},
    "bert": Family(caches=encoder_caches, weights=partial(bert_weights, projections=QKV)),
    "roberta": Family(
        caches=encoder_caches,
        weights=partial(bert_weights, projections=QKV),
    ),
}
