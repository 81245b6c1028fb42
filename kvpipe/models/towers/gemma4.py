"""Gemma 4: a tower that sees, one that hears, each absent where its section is null."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.joints import Joint
from kvpipe.models.towers.parts import gated, layer_norm, linear, square

CHANNELS = 3
AXES = 2  # places have a row and a column
SAMPLED = 4  # of pitches, one is left after two convolutions, times the channels of the second
PITCHES = 128


def vision(config: Values) -> int:
    """Attention of its own head size, RMS norms before and after both halves of a layer."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    head, bias = config.count("head_dim"), config.flag("attention_bias")
    wide = config.count("num_attention_heads") * head
    shared = config.count("num_key_value_heads") * head
    layer = linear(size, wide, bias) + 2 * linear(size, shared, bias) + linear(wide, size, bias)
    layer += 2 * head + gated(size, inner) + 4 * size
    patch = CHANNELS * config.count("patch_size") ** 2
    places = AXES * config.count("position_embedding_size") * size
    standard = 2 * size if config.flag("standardize") else 0
    return patch * size + places + config.layers("num_hidden_layers") * layer + standard


def audio(config: Values) -> int:
    """Two convolutions, then conformer layers."""
    size, layers = config.count("hidden_size"), config.layers("num_hidden_layers")
    first, second = (config.numbers("subsampling_conv_channels") or [128, 32])[:2]
    convolutions = square(1, first) + first + square(first, second) + second
    entry = linear(first // SAMPLED * second, size, False)
    out = config.count("output_proj_dims")
    return convolutions + entry + layers * _conformer(config, size) + linear(size, out)


def _conformer(config: Values, size: int) -> int:
    feeds = 2 * (8 * size * size + 2 * size)
    head = size // config.count("num_attention_heads")
    attention = head + 5 * size * size
    local = 3 * size * size + config.count("conv_kernel_size") * size + 2 * size
    return feeds + attention + local + 3 * size


def joint(whole: Values, tower: Values, text: Config) -> int:
    """A matrix for each tower that is there."""
    seeing, hearing = whole.section("vision_config"), whole.section("audio_config")
    seen = seeing.count("hidden_size") if seeing.raw else 0
    heard = hearing.count("output_proj_dims") if hearing.raw else 0
    return (seen + heard) * text.hidden_size


def unified(whole: Values, tower: Values, text: Config) -> int:
    """No towers: patches and sound go straight to the text."""
    seeing, hearing = whole.section("vision_config"), whole.section("audio_config")
    heard = hearing.count("audio_embed_dim") if hearing.raw else 0
    if not seeing.raw:
        return heard * text.hidden_size
    size, out = seeing.count("mm_embed_dim"), seeing.count("output_proj_dims")
    side = seeing.count("patch_size") * seeing.count("pooling_kernel_size")
    patch = CHANNELS * side**2
    places = AXES * seeing.count("mm_posemb_size") * size
    norms = layer_norm(patch) + 2 * layer_norm(size)
    return places + norms + linear(patch, size) + (out + heard) * text.hidden_size


def nothing(config: Values) -> int:
    return 0


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "gemma4_vision": vision,
    "gemma4_audio": audio,
    "gemma4_unified_vision": nothing,
    "gemma4_unified_audio": nothing,
}
JOINTS: Mapping[str, Joint] = {"gemma4": joint, "gemma4_unified": unified}
