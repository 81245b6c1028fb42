"""Towers that hear with conformer layers: attention and convolutions between two half MLPs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.towers.joints import Joint
from kvpipe.models.towers.parts import layer_norm, linear


def granite(config: Values) -> int:
    """Distances have an embedding each; letters are guessed in the middle."""
    size, out = config.count("hidden_dim"), config.count("output_dim")
    ends = linear(config.count("input_dim"), size) + linear(size, out) + linear(out, size)
    return ends + config.layers("num_layers") * _layer(config, size)


def _layer(config: Values, size: int) -> int:
    inner = size * config.count("feedforward_mult")
    feed = layer_norm(size) + linear(size, inner) + linear(inner, size)
    return 2 * feed + _attention(config, size) + _convolution(config, size) + layer_norm(size)


def _attention(config: Values, size: int) -> int:
    head = config.count("dim_head", size // config.count("num_heads"))
    wide = config.count("num_heads") * head
    distances = (2 * config.count("max_pos_emb") + 1) * head
    return layer_norm(size) + 3 * size * wide + linear(wide, size) + distances


def _convolution(config: Values, size: int) -> int:
    wide = size * config.count("conv_expansion_factor")
    columns = wide * config.count("conv_kernel_size")
    norms = layer_norm(size) + layer_norm(wide)
    return norms + linear(size, 2 * wide) + columns + linear(wide, size)


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "granite_speech_encoder": granite,
    "granite_speech_plus_encoder": granite,
}
JOINTS: Mapping[str, Joint] = {}
