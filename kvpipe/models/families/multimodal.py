"""Weights of text parts that were made for images or sound: Llama 3.2 Vision, Molmo 2, ERNIE 4.5 VL
(experts for images beside those for text), Voxtral Realtime. Their caches are standard.
"""

from __future__ import annotations

from functools import partial

from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.caches import standard_caches
from kvpipe.models.families.llama import llama_block
from kvpipe.models.families.seq2seq import mllama_caches, mllama_crossing, mllama_image_tokens
from kvpipe.models.families.weights import (
    attention,
    decoder,
    linear,
    mlp,
    norm,
    norms,
    router,
    vector,
)

IMAGE_TOKENS = 8  # that Llama 3.2 Vision embeds beside its vocabulary
ADAPTED = 32  # width of what tells Voxtral Realtime's layers the delay


def with_more_rows(weights: list[Weight], config: Config, rows: int) -> list[Weight]:
    """The same with so many more words in the embedding than in the head."""
    shape = (config.count("vocab_size") + rows, config.hidden_size)
    wider = Weight(name="model.embed_tokens.weight", shape=shape, split=0)
    return [wider, *(w for w in weights if w.name != wider.name)]


def mllama_block(config: Config, layer: int) -> list[Weight]:
    """Layers that see images have norms of q and k and two gates."""
    sees = layer in mllama_crossing(config)
    own = attention(config, layer, name="cross_attn", qk_norm=True)
    gates = [vector(f"cross_attn_{part}_gate", 1, layer=layer) for part in ("attn", "mlp")]
    return [
        *([*own, *gates] if sees else attention(config, layer)),
        *mlp(config, layer, config.intermediate_size),
        *norms(config, layer),
    ]


def mllama(config: Config) -> list[Weight]:
    return with_more_rows(decoder(config, mllama_block), config, IMAGE_TOKENS)


def molmo2_block(config: Config, layer: int) -> list[Weight]:
    """Norms of each head of q and k, or of all heads at once."""
    by_head = config.word("qk_norm_type", "qwen3") == "qwen3"
    heads = (config.num_heads, config.num_kv_heads)
    widths = [config.head_size * (1 if by_head else number) for number in heads]
    q_and_k = zip("qk", widths, strict=True)
    return [
        *attention(config, layer, bias=config.flag("attention_bias"), o_bias=False),
        *(w for part, width in q_and_k for w in norm(f"{part}_norm", width, layer=layer)),
        *mlp(config, layer, config.intermediate_size),
        *norms(config, layer),
    ]


def molmo2(config: Config) -> list[Weight]:
    more = config.number("additional_vocab_size")
    return with_more_rows(decoder(config, molmo2_block), config, more)


def ernie_vl_block(config: Config, layer: int) -> list[Weight]:
    bias = config.flag("use_bias")
    kinds = config.words("mlp_layer_types") or []
    is_dense = kinds[layer] == "dense" if layer < len(kinds) else layer == 0
    dense = mlp(config, layer, config.intermediate_size, bias=bias)
    return [
        *attention(config, layer, bias=bias),
        *(dense if is_dense else _experts(config, layer, bias)),
        *norms(config, layer),
    ]


def _experts(config: Config, layer: int, bias: bool) -> list[Weight]:
    """Of text and of images, each with a router and a correction a number; shared ones are as wide
    as those of text."""
    number, shared = config.count("moe_num_experts"), config.number("moe_num_shared_experts")
    widths = config.numbers("moe_intermediate_size") or []
    if len(widths) != 2:
        got = config.get("moe_intermediate_size")
        raise config.wrong("moe_intermediate_size", "a width for text and one for images", got)
    found: list[Weight] = []
    for kind, width in zip(("text_moe", "vision_moe"), widths, strict=True):
        name = f"mlp.{kind}"
        found += router(config, layer, number, name=f"{name}.gate")
        found.append(vector(f"{name}.gate.e_score_correction_bias", number, layer=layer))
        found += mlp(config, layer, width, name=f"{name}.experts", count=number)
    wide = widths[0] * shared
    return found + (mlp(config, layer, wide, name="mlp.shared_experts", bias=bias) if wide else [])


def realtime_block(config: Config, layer: int) -> list[Weight]:
    size = config.hidden_size
    return [
        *llama_block(config, layer),
        *linear("ada_rms_norm.linear1", ADAPTED, size, layer=layer, quantized=False),
        *linear("ada_rms_norm.linear2", size, ADAPTED, layer=layer, quantized=False),
    ]


FAMILIES = {
    "mllama_text_model": Family(
        caches=mllama_caches, encoder_tokens=mllama_image_tokens, weights=mllama
    ),
    "molmo2_text": Family(caches=standard_caches, weights=molmo2),
    "ernie4_5_vl_moe_text": Family(
        caches=standard_caches, weights=partial(decoder, block=ernie_vl_block)
    ),
    "voxtral_realtime_text": Family(
        caches=standard_caches, weights=partial(decoder, block=realtime_block)
    ),
}
