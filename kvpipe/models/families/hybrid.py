"""Attention among states: some layers store K/V, some a state, some both, some nothing.

What such families share, and those that need no more: Bamba, Granite 4, Falcon-H1
(arXiv:2507.22448).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import FULL, attention_cache, state_cache
from kvpipe.models.families.experts import routed
from kvpipe.models.families.states import mamba2_mixer, mamba2_states
from kvpipe.models.families.weights import attention, decoder, mlp, norms

# Words that files use for one kind of layer.
ATTENTION = {"attention", FULL}
STATE = {"mamba", "linear_attention", "mamba2", "conv"}
BOTH = {"hybrid", "hybrid_mamba"}
NOTHING = {"mlp", "moe"}


# Every layer asks what all layers are; a Config is never changed, so that one answer will do.
once_a_file = lru_cache(maxsize=8)


def kinds(config: Config, derived: Sequence[str] | None = None) -> list[str]:
    """What each layer is, in the file's words; an unknown word is an error, never attention."""
    written = config.words("layer_types") or config.words("layers_block_type") or derived
    known = ATTENTION | STATE | BOTH | NOTHING
    if not written or len(written) != config.num_layers:
        expected = f"{config.num_layers} entries (num_hidden_layers)"
        raise unreadable("layer_types", expected, len(written or ()))
    for kind in written:
        if kind not in known:
            raise unreadable("layer_types", f"one of {', '.join(sorted(known))}", f"'{kind}'")
    return list(written)


def attends(kind: str) -> bool:
    return kind in ATTENTION | BOTH


def has_state(kind: str) -> bool:
    return kind in STATE | BOTH


def mamba2_head_size(config: Config) -> int:
    """A number, or what the expanded channels leave a head ("auto", null)."""
    inner = config.number("mamba_d_ssm") or int(
        (config.ratio("mamba_expand", 2) or 2) * config.hidden_size
    )
    automatic = max(inner // config.count("mamba_n_heads"), 1)
    return (
        automatic
        if config.get("mamba_d_head") == "auto"
        else config.count("mamba_d_head", automatic)
    )


# --- Mamba 2, under the key names of Bamba -----------------------------------------------------
def mamba2_shapes(config: Config) -> dict[str, list[int]]:
    return mamba2_states(
        config.count("mamba_n_heads"),
        mamba2_head_size(config),
        config.count("mamba_d_state"),
        config.count("mamba_n_groups"),
        config.count("mamba_d_conv"),
    )


def mamba2_hybrid_caches(
    config: Config, derived: Sequence[str] | None = None
) -> list[CacheGeometry]:
    shapes, groups = mamba2_shapes(config), config.count("mamba_n_groups")
    state = partial(
        state_cache, name="mamba", mamba_type="mamba2", states=shapes, num_groups=groups
    )
    caches = []
    for layer, kind in enumerate(kinds(config, derived)):
        caches += [attention_cache(config, layer)] if attends(kind) else []
        caches += [state(layer)] if has_state(kind) else []
    return caches


def mixer2(
    config: Config,
    layer: int,
    *,
    normed: bool = True,
    out_bias: bool | None = None,
    name: str = "mamba",
) -> list[Weight]:
    return mamba2_mixer(
        config,
        layer,
        mamba2_shapes(config),
        name=name,
        bias=config.flag("mamba_proj_bias"),
        out_bias=out_bias,
        conv_bias=config.flag("mamba_conv_bias", True),
        normed=normed,
    )


# --- Bamba -----------------------------------------------------------------------------------
@once_a_file
def bamba_kinds(config: Config) -> list[str]:
    attending = set(config.numbers("attn_layer_indices") or ())
    derived = ["attention" if i in attending else "mamba" for i in range(config.num_layers)]
    return kinds(config, derived)


def bamba_caches(config: Config) -> list[CacheGeometry]:
    return mamba2_hybrid_caches(config, bamba_kinds(config))


def bamba_block(config: Config, layer: int) -> list[Weight]:
    attending = attends(bamba_kinds(config)[layer])
    own = attention(config, layer, bias=config.flag("attention_bias"))
    return [
        *(own if attending else mixer2(config, layer)),
        *mlp(config, layer, config.intermediate_size, bias=config.flag("mlp_bias")),
        *norms(config, layer),
    ]


# --- Granite 4 -------------------------------------------------------------------------------
def granite_experts(config: Config, layer: int) -> list[Weight]:
    """Routed experts (none where num_local_experts is 0) beside one that every token visits."""
    number, shared = config.number("num_local_experts"), config.count("shared_intermediate_size")
    return [
        *(routed(config, layer, number, config.intermediate_size) if number else []),
        *mlp(config, layer, shared, name="shared_mlp"),
    ]


@once_a_file
def granite_kinds(config: Config) -> list[str]:
    return kinds(config, ["mamba"] * config.num_layers)


def granite_block(config: Config, layer: int) -> list[Weight]:
    attending = attends(granite_kinds(config)[layer])
    own = attention(config, layer, bias=config.flag("attention_bias"))
    return [
        *(own if attending else mixer2(config, layer)),
        *granite_experts(config, layer),
        *norms(config, layer),
    ]


def granite_caches(config: Config) -> list[CacheGeometry]:
    return mamba2_hybrid_caches(config, granite_kinds(config))


# --- Falcon-H1: attention and state side by side in every layer ----------------------------------
def falcon_h1_caches(config: Config) -> list[CacheGeometry]:
    return mamba2_hybrid_caches(config, ["hybrid"] * config.num_layers)


def falcon_h1_block(config: Config, layer: int) -> list[Weight]:
    return [
        *attention(config, layer, bias=config.flag("attention_bias")),
        *mixer2(
            config,
            layer,
            normed=config.flag("mamba_rms_norm"),
            out_bias=config.flag("projectors_bias"),
        ),
        *mlp(config, layer, config.intermediate_size, bias=config.flag("mlp_bias")),
        *norms(config, layer),
    ]


FAMILIES = {
    "bamba": Family(caches=bamba_caches, weights=partial(decoder, block=bamba_block)),
    "granitemoehybrid": Family(
        caches=granite_caches, weights=partial(decoder, block=granite_block)
    ),
    "falcon_h1": Family(
        caches=falcon_h1_caches,
        weights=partial(decoder, block=falcon_h1_block),
    ),
}
