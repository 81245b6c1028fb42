"""Models of states alone: a request takes the same bytes at any length.

Mamba 1 (arXiv:2312.00752), Falcon-Mamba, Mamba 2 (arXiv:2405.21060). A convolution state keeps
kernel - 1 columns of its channels.
"""

from __future__ import annotations

from functools import partial
from math import ceil

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.caches import state_cache
from kvpipe.models.families.weights import decoder, linear, norms, vector

UNLIMITED = 2**20  # tokens; a state has no length, so the limit is ours


# --- Mamba 1 ---------------------------------------------------------------------------------
def mamba1_sizes(config: Config) -> tuple[int, int, int, int]:
    """Channels, state size, kernel, rank of the time step."""
    channels = config.count("intermediate_size", config.count("expand") * config.hidden_size)
    steps = time_steps(config, "time_step_rank")
    return channels, config.count("state_size"), config.count("conv_kernel"), steps


def time_steps(config: Config, key: str) -> int:
    """Rank of the time step: a number, or a sixteenth of the hidden size ("auto", null)."""
    automatic = ceil(config.hidden_size / 16)
    return automatic if config.get(key) == "auto" else config.count(key, automatic)


def mamba1_caches(config: Config) -> list[CacheGeometry]:
    channels, state, kernel, _ = mamba1_sizes(config)
    shapes = {"conv": [channels, kernel - 1], "ssm": [channels, state]}
    return [
        state_cache(i, "mixer", "mamba1", shapes, prefix="backbone.layers")
        for i in range(config.num_layers)
    ]


def mamba1_mixer(
    config: Config, layer: int, sizes: tuple[int, int, int, int], *, name: str = "mixer"
) -> list[Weight]:
    channels, state, kernel, rank = sizes
    bias, conv_bias = config.flag("use_bias"), config.flag("use_conv_bias", True)
    small = partial(vector, layer=layer, split=0)
    row = partial(linear, layer=layer, split=1)
    return [
        *linear(
            f"{name}.in_proj", 2 * channels, config.hidden_size, layer=layer, split=0, bias=bias
        ),
        small(f"{name}.conv1d.weight", channels, 1, kernel),
        *([small(f"{name}.conv1d.bias", channels)] if conv_bias else []),
        *row(f"{name}.x_proj", rank + 2 * state, channels),
        *linear(f"{name}.dt_proj", channels, rank, layer=layer, split=0, bias=True),
        small(f"{name}.A_log", channels, state),
        small(f"{name}.D", channels),
        *row(f"{name}.out_proj", config.hidden_size, channels, bias=bias),
    ]


def mamba1_block(config: Config, layer: int) -> list[Weight]:
    return [*mamba1_mixer(config, layer, mamba1_sizes(config)), *norms(config, layer, 1)]


# --- Mamba 2 ---------------------------------------------------------------------------------
def mamba2_states(
    heads: int, head_size: int, state: int, groups: int, kernel: int
) -> dict[str, list[int]]:
    """The convolution sees the heads' channels and B and C of every group."""
    channels = heads * head_size + 2 * groups * state
    return {"conv": [channels, kernel - 1], "ssm": [heads, head_size, state]}


def mamba2_shapes(config: Config) -> dict[str, list[int]]:
    return mamba2_states(
        config.count("num_heads"),
        config.count("head_dim"),
        config.count("state_size"),
        config.count("n_groups"),
        config.count("conv_kernel"),
    )


def mamba2_caches(config: Config) -> list[CacheGeometry]:
    shapes, groups = mamba2_shapes(config), config.count("n_groups")
    return [
        state_cache(i, "mixer", "mamba2", shapes, groups, prefix="backbone.layers")
        for i in range(config.num_layers)
    ]


def mamba2_mixer(
    config: Config,
    layer: int,
    shapes: dict[str, list[int]],
    *,
    name: str = "mixer",
    bias: bool = False,
    out_bias: bool | None = None,
    conv_bias: bool = True,
    normed: bool = True,
) -> list[Weight]:
    """The gate, the convolution's channels and a time step a head come out of one projection."""
    (channels, columns), (heads, head_size, _) = shapes["conv"], shapes["ssm"]
    inner, hidden = heads * head_size, config.hidden_size
    rows, small = inner + channels + heads, partial(vector, layer=layer, split=0)
    out_bias = bias if out_bias is None else out_bias
    return [
        *linear(f"{name}.in_proj", rows, hidden, layer=layer, split=0, bias=bias),
        small(f"{name}.conv1d.weight", channels, 1, columns + 1),
        *([small(f"{name}.conv1d.bias", channels)] if conv_bias else []),
        *(small(f"{name}.{part}", heads) for part in ("dt_bias", "A_log", "D")),
        *([small(f"{name}.norm.weight", inner)] if normed else []),
        *linear(f"{name}.out_proj", hidden, inner, layer=layer, split=1, bias=out_bias),
    ]


def mamba2_block(config: Config, layer: int) -> list[Weight]:
    mixer = mamba2_mixer(
        config,
        layer,
        mamba2_shapes(config),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias", True),
    )
    return [*mixer, *norms(config, layer, 1)]


def rwkv_caches(config: Config) -> list[CacheGeometry]:
    """RWKV-4 (arXiv:2305.13048): five vectors a layer."""
    width = config.count("attention_hidden_size", config.hidden_size)
    sizes = {"ffn": config.hidden_size, "att": config.hidden_size}
    sizes |= dict.fromkeys(("numerator", "denominator", "maximum"), width)
    shapes = {name: [size] for name, size in sizes.items()}
    return [
        state_cache(i, "attention", "rwkv", shapes, prefix="rwkv.blocks")
        for i in range(config.num_layers)
    ]


FAMILIES = {
    "rwkv": Family(caches=rwkv_caches, ssm_dtype="float32"),
    "mamba": Family(
        caches=mamba1_caches,
        weights=partial(decoder, block=mamba1_block),
        defaults={"max_position_embeddings": UNLIMITED},
    ),
    "falcon_mamba": Family(
        caches=mamba1_caches,
        weights=partial(decoder, block=mamba1_block),
        defaults={"max_position_embeddings": UNLIMITED},
    ),
    "mamba2": Family(
        caches=mamba2_caches,
        weights=partial(decoder, block=mamba2_block),
        defaults={"max_position_embeddings": UNLIMITED},
    ),
}
