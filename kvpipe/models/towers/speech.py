"""Towers that hear and are like no other, and what joins them to the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.audio import width
from kvpipe.models.towers.joints import Given, Joint
from kvpipe.models.towers.parts import gated, layer_norm, linear


def omniasr(config: Values) -> int:
    """wav2vec 2.0: seven convolutions over a waveform, one that tells places, layers."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    widths, kernels = config.numbers("conv_dim") or [], config.numbers("conv_kernel") or []
    inputs, bias = [1, *widths], config.flag("conv_bias", True)
    total = sum(
        linear(one * kernel, two, bias) + layer_norm(two)
        for one, two, kernel in zip(inputs, widths, kernels, strict=False)
    )
    layer = (
        4 * linear(size, size) + linear(size, inner) + linear(inner, size) + 2 * layer_norm(size)
    )
    groups = config.count("num_conv_pos_embedding_groups")
    places = linear(size // groups * config.count("num_conv_pos_embeddings"), size)
    entry = layer_norm(inputs[-1]) + linear(inputs[-1], size)
    return total + entry + places + config.layers("num_hidden_layers") * layer + layer_norm(size)


def fun_asr(config: Values) -> int:
    """Frames are stacked before the first layer; layers that guess times follow."""
    size, layers = config.count("hidden_size"), config.layers("num_hidden_layers")
    stacked = config.count("num_mel_bins") * config.count("num_stacked_frames")
    first = 3 * (stacked - size) * size + layer_norm(stacked) - layer_norm(size)
    inner = config.count("intermediate_size")
    memory = config.count("fsmn_kernel_size") * size
    layer = 4 * linear(size, size) + memory + linear(size, inner) + linear(inner, size)
    layer += 2 * layer_norm(size)
    guessing = min(layers, config.number("num_timestamp_prediction_layers"))
    ends = (guessing > 0) + (guessing < layers)
    return layers * layer + first + ends * layer_norm(size)


def fun_asr_adaptor(config: Values) -> int:
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layer = (
        4 * linear(size, size) + linear(size, inner) + linear(inner, size) + 2 * layer_norm(size)
    )
    return config.layers("num_hidden_layers") * layer


def fun_asr_joint(whole: Values, tower: Values, text: Config) -> int:
    heard, adaptor = whole.section("audio_config"), whole.section("adaptor_config")
    inner = adaptor.count("projector_hidden_size")
    return linear(heard.count("hidden_size"), inner) + linear(inner, adaptor.count("hidden_size"))


def tokenizer(config: Values) -> int:
    """VibeVoice's: blocks of convolutions, ever fewer and wider."""
    kernel, (widths, strides) = config.count("kernel_size"), _stages(config)
    down = sum(
        linear(one * 2 * stride, two)
        for one, two, stride in zip(widths, widths[1:], strides, strict=False)
    )
    ends = linear(config.count("channels") * kernel, widths[0])
    return ends + down + _blocks(config) + linear(widths[-1] * kernel, config.count("hidden_size"))


def codec(config: Values) -> int:
    """An encoder as above, and a decoder that mirrors it."""
    kernel, (widths, strides) = config.count("kernel_size"), _stages(config)
    up = sum(
        linear(two * 2 * stride, one)
        for one, two, stride in zip(widths, widths[1:], strides, strict=False)
    )
    ends = linear(config.count("hidden_size") * kernel, widths[-1])
    ends += linear(widths[0] * kernel, config.count("channels"))
    return tokenizer(config) + ends + up + _blocks(config)


def _stages(config: Values) -> tuple[list[int], list[int]]:
    """Widths of the stages, and the strides between them."""
    size, depths = config.count("num_filters"), config.numbers("depths") or [1]
    strides = config.numbers("downsampling_ratios") or []
    return [size * 2**stage for stage in range(len(depths))], strides


def _blocks(config: Values) -> int:
    """A convolution of each channel alone and an MLP, each normed and scaled."""
    widths, depths = _stages(config)[0], config.numbers("depths") or [1]
    kernel, factor = config.count("kernel_size"), config.count("ffn_expansion")
    return sum(
        depth
        * (
            4 * size
            + linear(kernel, size)
            + linear(size, size * factor)
            + linear(size * factor, size)
        )
        for size, depth in zip(widths, depths, strict=True)
    )


def vibevoice_asr(whole: Values, tower: Values, text: Config) -> int:
    """What is said and how it sounds, each through two layers."""
    parts = ("acoustic_tokenizer_encoder_config", "semantic_tokenizer_encoder_config")
    return sum(_heard(whole.section(part), text) for part in parts)


def vibevoice(whole: Values, tower: Values, text: Config) -> int:
    """The same, and a factor and a shift of what is heard."""
    return 2 + sum(
        _heard(whole.section(f"{part}_config"), text) for part in ("audio", "semantic_model")
    )


def _heard(config: Values, text: Config) -> int:
    size = text.hidden_size
    return linear(config.count("hidden_size"), size) + size + linear(size, size)


def of_text_width(whole: Values, text: Config) -> Mapping[str, Mapping[str, int]]:
    latent = whole.section("audio_config").count("hidden_size")
    return {"diffusion_head_config": {"hidden_size": text.hidden_size, "latent_size": latent}}


def omniasr_joint(whole: Values, tower: Values, text: Config) -> int:
    return linear(width(tower), text.hidden_size)


def diffusion(config: Values) -> int:
    """What makes sound from the text's hidden states, layer by layer."""
    size, latent = config.count("hidden_size"), config.count("latent_size")
    entry = latent * size + size * size + config.count("frequency_embedding_size") * size
    layer = gated(size, config.count("intermediate_size"), config.flag("mlp_bias")) + size
    layer += 3 * size * size
    final = 2 * size * size + size * latent
    return entry + size * size + config.layers("num_hidden_layers") * layer + final


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "omniasr_audio": omniasr,
    "fun_asr_nano_encoder": fun_asr,
    "fun_asr_nano.adaptor_config": fun_asr_adaptor,
    "vibevoice_acoustic_tokenizer_encoder": tokenizer,
    "vibevoice_acoustic_tokenizer": codec,
    "vibevoice_diffusion": diffusion,
}
JOINTS: Mapping[str, Joint] = {
    "omniasr": omniasr_joint,
    "fun_asr_nano": fun_asr_joint,
    "vibevoice_asr": vibevoice_asr,
    "vibevoice": vibevoice,
}
GIVEN: Mapping[str, Given] = {"vibevoice": of_text_width}
