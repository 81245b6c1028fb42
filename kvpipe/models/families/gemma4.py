"""Gemma 4: wide heads in its full layers, last layers that read earlier ones' K/V, experts."""

from __future__ import annotations

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.caches import FULL, attention_cache, of_layer
from kvpipe.models.families.gemma import sharing_caches
from kvpipe.models.families.weights import attention, decoder, linear, mlp, norm, norms, vector
from kvpipe.models.families.windows import every_sixth_and_last, types_by


def gemma4_types(config: Config) -> list[str]:
    """The last layer is full whatever the file says."""
    return [*types_by(config, every_sixth_and_last)[:-1], FULL]


def gemma4_caches(config: Config) -> list[CacheGeometry]:
    types = gemma4_types(config)
    caches = [
        attention_cache(wide(config) if kind == FULL else config, i, kind)
        for i, kind in enumerate(types)
    ]
    return sharing_caches(config, types, caches)


def wide(config: Config) -> Config:
    """Full layers have heads of global_head_dim, and fewer where K and V are one projection."""
    sizes = {"head_dim": config.count("global_head_dim", 512)}
    if config.flag("attention_k_eq_v") and config.number("num_global_key_value_heads"):
        sizes["num_key_value_heads"] = config.count("num_global_key_value_heads")
    return config.having(**sizes)


def gemma4_window(config: Config) -> Config:
    """Attention in both directions halves the window."""
    if config.word("use_bidirectional_attention") != "all":
        return config
    return config.having(sliding_window=config.count("sliding_window") // 2 + 1)


# --- weights -------------------------------------------------------------------------------------
def gemma4_block(config: Config, layer: int, *, shares: bool, kind: str) -> list[Weight]:
    """A layer that reads another's K/V has no projections to them; K is V where they are one."""
    full = kind == FULL
    own = attention(
        of_layer(wide(config), layer) if full else config,
        layer,
        bias=config.flag("attention_bias"),
        qk_norm=True,
    )
    left_out: tuple[str, ...] = ("self_attn.v_proj",) * (full and config.flag("attention_k_eq_v"))
    if shares:
        left_out = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")
    width = config.intermediate_size * (1 + (shares and config.flag("use_double_wide_mlp")))
    return [
        *(weight for weight in own if not weight.name.startswith(left_out or ("-",))),
        *mlp(config, layer, width),
        *norms(config, layer, 4),
        *per_layer_inputs(config, layer),
        *(gemma4_experts(config, layer) if config.flag("enable_moe_block") else []),
    ]


def per_layer_inputs(config: Config, layer: int) -> list[Weight]:
    hidden, rank = config.hidden_size, config.number("hidden_size_per_layer_input")
    if not rank:
        return []
    return [
        *linear("per_layer_input_gate", rank, hidden, layer=layer, quantized=False),
        *linear("per_layer_projection", hidden, rank, layer=layer, quantized=False),
        *norm("post_per_layer_input_norm", hidden, layer=layer),
    ]


def gemma4_experts(config: Config, layer: int) -> list[Weight]:
    """Beside the MLP; the router has a scale a number and a scale an expert."""
    number, hidden = config.count("num_experts"), config.hidden_size
    return [
        *linear("router.proj", number, hidden, layer=layer, quantized=False),
        vector("router.scale", hidden, layer=layer),
        vector("router.per_expert_scale", number, layer=layer),
        *mlp(config, layer, config.count("moe_intermediate_size"), name="experts", count=number),
        *norms(config, layer, 3, name="experts_norm"),
    ]


def gemma4_weights(config: Config) -> list[Weight]:
    caches, types = gemma4_caches(config), gemma4_types(config)

    def block(config: Config, layer: int) -> list[Weight]:
        shares = caches[layer].shares_with is not None
        return gemma4_block(config, layer, shares=shares, kind=types[layer])

    rank = config.number("hidden_size_per_layer_input")
    width = rank * config.num_layers
    if not rank:
        return decoder(config, block)
    rows = config.count("vocab_size_per_layer_input")
    return [
        *decoder(config, block),
        Weight(name="model.embed_tokens_per_layer.weight", shape=(rows, width), split=0),
        *linear("model.per_layer_model_projection", width, config.hidden_size),
        *norm("model.per_layer_projection_norm", rank),
    ]


gemma4 = Family(caches=lambda config: gemma4_caches(gemma4_window(config)), weights=gemma4_weights)

FAMILIES = {
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4,
    # Its class has no attention_k_eq_v: fewer global heads need no flag.
    "diffusion_gemma_text": Family(
        caches=lambda config: gemma4.caches(config.having(attention_k_eq_v=True))
    ),
}
