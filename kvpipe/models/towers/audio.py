"""Towers that hear: model_type of the audio part -> its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.towers.parts import gated, layer_norm, linear

KERNEL = 3  # columns of a convolution


def whisper(config: Values) -> int:
    """Whisper's encoder, with the places that its class keeps."""
    size = width(config)
    return _encoder(config) + _convolutions(config) + config.count("max_source_positions") * size


def qwen2_5_omni(config: Values) -> int:
    """The same without places, two tokens that stand around sound, and a projection."""
    size, out = width(config), config.count("output_dim")
    return _encoder(config) + _convolutions(config) + 2 * out + linear(size, out)


def qwen3_omni(config: Values) -> int:
    """Three convolutions over time and pitch, each of which halves both; two layers at the end."""
    size, out = width(config), config.count("output_dim")
    wide, pitches = config.count("downsample_hidden_size"), config.count("num_mel_bins")
    for _ in range(3):
        pitches = (pitches + 1) // 2
    convolutions = linear(KERNEL**2, wide) + 2 * linear(wide * KERNEL**2, wide)
    return (
        _encoder(config, key_bias=True)
        + convolutions
        + linear(wide * pitches, size, False)
        + linear(size, size)
        + linear(size, out)
    )


def glmasr(config: Values) -> int:
    """As Whisper's without places; K and V may have fewer heads."""
    size, inner = width(config), config.count("intermediate_size")
    heads = config.count("num_attention_heads")
    head = config.count("head_dim", size // heads)
    wide, shared = heads * head, config.count("num_key_value_heads", heads) * head
    layer = linear(size, wide) + size * shared + linear(size, shared) + linear(wide, size)
    layer += linear(size, inner) + linear(inner, size) + 2 * layer_norm(size)
    return _convolutions(config) + config.layers("num_hidden_layers") * layer + layer_norm(size)


def realtime(config: Values) -> int:
    """Voxtral Realtime's, with RMS norms and a gated MLP."""
    size, head = width(config), config.count("head_dim")
    heads = config.count("num_attention_heads")
    wide = heads * head
    shared = config.count("num_key_value_heads", heads) * head
    layer = linear(size, wide) + size * shared + linear(size, shared) + linear(wide, size)
    layer += gated(size, config.count("intermediate_size")) + size + 2 * size
    return _convolutions(config) + config.layers("num_hidden_layers") * layer + size


def width(config: Values) -> int:
    """Of the layers, as Whisper calls it or as others do."""
    return config.count("d_model", config.number("hidden_size") or None)


def _convolutions(config: Values) -> int:
    size = width(config)
    return linear(config.count("num_mel_bins") * KERNEL, size) + linear(size * KERNEL, size)


def _encoder(config: Values, *, key_bias: bool = False) -> int:
    """Layers and the norm after them; Whisper's keys have no bias."""
    size = width(config)
    inner = config.count("encoder_ffn_dim", config.number("intermediate_size") or None)
    layers = config.number("encoder_layers") or config.number("num_hidden_layers")
    layer = 3 * linear(size, size) + linear(size, size, key_bias) + 2 * layer_norm(size)
    layer += linear(size, inner) + linear(inner, size)
    return layers * layer + layer_norm(size)


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "qwen2_audio_encoder": whisper,
    "audioflamingo3_encoder": whisper,
    "voxtral_encoder": whisper,
    "qwen2_5_omni_audio_encoder": qwen2_5_omni,
    "qwen3_omni_moe_audio_encoder": qwen3_omni,
    "qwen3_asr_encoder": qwen3_omni,
    "glmasr_encoder": glmasr,
    "voxtral_realtime_encoder": realtime,
    "moss_transcribe_diarize_audio": whisper,
}
