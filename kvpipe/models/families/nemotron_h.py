"""Nemotron-H (arXiv:2504.03624): one mixer a layer, a state, attention, an MLP or experts."""

from __future__ import annotations

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import FULL, attention_cache, state_cache
from kvpipe.models.families.hybrid import (
    NOTHING,
    attends,
    kinds,
    mamba2_shapes,
    mixer2,
    once_a_file,
)
from kvpipe.models.families.weights import attention, decoder, linear, mlp, norms, router

# The letters of hybrid_override_pattern, and the four layers of the class's default.
DEFAULT_KINDS = ("linear_attention", "moe", FULL, "mlp")
# What its class takes for its own names, where a file has them.
OTHER_NAMES = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
}
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


@once_a_file
def nemotron_kinds(config: Config) -> list[str]:
    pattern = config.word("hybrid_override_pattern")
    if not pattern:
        return kinds(config, DEFAULT_KINDS)
    unknown = set(pattern) - set(PATTERN)
    if unknown:
        expected = f"letters {' '.join(PATTERN)}"
        raise unreadable("hybrid_override_pattern", expected, " ".join(sorted(unknown)))
    return kinds(config, [PATTERN[letter] for letter in pattern])


def nemotron_sizes(config: Config) -> Config:
    names = {
        "mamba_n_heads": "mamba_num_heads",
        "mamba_d_head": "mamba_head_dim",
        "mamba_d_state": "ssm_state_size",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
    }
    sizes = {standard: config.count(name) for standard, name in names.items()}
    layers = _layers_as_listed(config)
    biases = {
        "mamba_conv_bias": config.flag("use_conv_bias", True),
        "mamba_proj_bias": config.flag("use_bias"),
    }
    return config.having(**sizes, **layers, **biases)


def _layers_as_listed(config: Config) -> dict[str, int]:
    """A file of kinds alone (Nemotron 3 Ultra) has as many layers as it lists, as its class counts;
    a number beside the list must agree."""
    if pattern := config.word("hybrid_override_pattern"):
        return {"num_hidden_layers": len(pattern)}
    listed = config.words("layer_types") or config.words("layers_block_type")
    is_said = config.raw.get("num_hidden_layers") is not None
    return {"num_hidden_layers": len(listed)} if listed and not is_said else {}


def nemotron_caches(config: Config) -> list[CacheGeometry]:
    config = nemotron_sizes(config)
    shapes, groups = mamba2_shapes(config), config.count("mamba_n_groups")
    prefix = "backbone.layers"
    return [
        attention_cache(config, i, prefix=prefix, name="mixer.attn")
        if attends(kind)
        else state_cache(i, "mixer", "mamba2", shapes, groups, prefix=prefix)
        for i, kind in enumerate(nemotron_kinds(config))
        if kind not in NOTHING
    ]


def nemotron_experts(config: Config, layer: int) -> list[Weight]:
    number, width = config.count("n_routed_experts"), config.count("moe_intermediate_size")
    shared, bias = config.count("moe_shared_expert_intermediate_size"), config.flag("mlp_bias")
    seen = config.having(hidden_size=config.number("moe_latent_size") or config.hidden_size)
    return [
        *router(config, layer, number),
        *_latent_projections(config, layer, bias=bias),
        *mlp(seen, layer, width, gated=False, name="mixer.experts", count=number),
        *mlp(config, layer, shared, gated=False, bias=bias, name="mixer.shared_experts"),
    ]


def _latent_projections(config: Config, layer: int, *, bias: bool) -> list[Weight]:
    """Into the narrower space of the experts and back, where there is one (Nemotron 3 Super)."""
    latent, hidden = config.number("moe_latent_size"), config.hidden_size
    if not latent:
        return []
    into = linear("mixer.fc1_latent_proj", latent, hidden, layer=layer, bias=bias)
    return [*into, *linear("mixer.fc2_latent_proj", hidden, latent, layer=layer, bias=bias)]


def nemotron_block(config: Config, layer: int) -> list[Weight]:
    kind, bias = nemotron_kinds(config)[layer], config.flag("mlp_bias")
    if kind == "moe":
        mixer = nemotron_experts(config, layer)
    elif kind == "mlp":
        mixer = mlp(config, layer, config.intermediate_size, gated=False, bias=bias)
    elif attends(kind):
        mixer = attention(config, layer)
    else:
        mixer = mixer2(config, layer, name="mixer")
    return [*mixer, *norms(config, layer, 1)]


def nemotron_weights(config: Config) -> list[Weight]:
    return decoder(nemotron_sizes(config), nemotron_block)


FAMILIES = {
    "nemotron_h": Family(
        caches=nemotron_caches,
        weights=nemotron_weights,
        num_layers=lambda config: nemotron_sizes(config).num_layers,
        defaults={"num_hidden_layers": len(DEFAULT_KINDS)},
        aliases=OTHER_NAMES,
        ssm_dtype="float32",
    ),
}
