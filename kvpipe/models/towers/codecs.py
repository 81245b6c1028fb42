"""Codecs of images (VQ-GAN), which stand beside models that draw: Janus, Emu3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.joints import Joint, nothing
from kvpipe.models.towers.parts import layer_norm, linear, square

FRAMES, DOWN_FRAMES = 3, 4  # that a convolution over time sees; one that halves their number


def janus(config: Values) -> int:
    """Encoder, codebook, decoder; attention at the lowest resolution."""
    latent, size = config.count("latent_channels"), config.count("embed_dim")
    book = config.count("num_embeddings") * size + linear(latent, size) + linear(size, latent)
    return _encoder(config, latent) + book + _decoder(config, latent)


def _channels(config: Values) -> list[int]:
    base = config.count("base_channels")
    return [base * factor for factor in config.numbers("channel_multiplier") or [1]]


def _residual(inputs: int, outputs: int) -> int:
    norms = layer_norm(inputs) + layer_norm(outputs)
    narrow = linear(inputs, outputs) if inputs != outputs else 0
    return norms + square(inputs, outputs, True) + square(outputs, outputs, True) + narrow


def _attention(size: int) -> int:
    return layer_norm(size) + 4 * linear(size, size)


def _middle(size: int) -> int:
    return 2 * _residual(size, size) + _attention(size)


def _encoder(config: Values, latent: int) -> int:
    levels, blocks = _channels(config), config.count("num_res_blocks")
    size = config.count("base_channels")
    total = square(config.count("in_channels"), size, True)
    for level, out in enumerate(levels):
        total += _residual(size, out) + (blocks - 1) * _residual(out, out)
        size, is_last = out, level == len(levels) - 1
        total += blocks * _attention(size) if is_last else square(size, size, True)
    out = latent * (2 if config.flag("double_latent") else 1)
    return total + _middle(size) + layer_norm(size) + square(size, out, True)


def _decoder(config: Values, latent: int) -> int:
    levels, blocks = _channels(config), config.count("num_res_blocks") + 1
    size = levels[-1]
    total = square(latent, size, True) + _middle(size)
    for level, out in reversed(list(enumerate(levels))):
        total += _residual(size, out) + (blocks - 1) * _residual(out, out)
        size = out
        total += blocks * _attention(size) if level == len(levels) - 1 else 0
        total += square(size, size, True) if level else 0
    return total + layer_norm(size) + square(size, config.count("out_channels"), True)


def joint(whole: Values, tower: Values, text: Config) -> int:
    """Both ways in: from the tower that sees and from the codebook; and the head that draws."""
    seeing, drawing = whole.section("vision_config"), whole.section("vq_config")
    out = seeing.count("projection_dim")
    aligner = linear(seeing.count("hidden_size"), out)
    aligner += (seeing.count("depth") - 1) * linear(out, out)
    size, wide = drawing.count("embed_dim"), drawing.count("projection_dim")
    codes = drawing.count("num_embeddings")
    drawn = codes * size + linear(size, wide)
    drawn += (drawing.count("num_hidden_layers") - 1) * linear(wide, wide)
    head = linear(drawing.count("image_token_embed_dim"), wide) + linear(wide, codes)
    return aligner + drawn + head


def emu3(config: Values) -> int:
    """Of images and videos: convolutions over time stand at both ends, and the decoder's norms
    look at the codes."""
    latent, size = config.count("latent_channels"), config.count("embed_dim")
    out = latent * (2 if config.flag("double_latent") else 1)
    book = config.count("codebook_size") * size
    book += linear(FRAMES * latent, size) + linear(FRAMES * size, latent)
    halves = int(log2(config.count("temporal_downsample_factor")))
    down = halves * _over_time(out, out, DOWN_FRAMES) + _time_blocks(config, out)
    up = halves * _over_time(latent, latent, FRAMES) + _time_blocks(config, latent)
    return _emu3_encoder(config, out) + _emu3_decoder(config, latent, size) + book + down + up


def _over_time(inputs: int, outputs: int, frames: int) -> int:
    return linear(inputs * frames * 9, outputs)


def _time_blocks(config: Values, size: int) -> int:
    block = 2 * layer_norm(size) + 2 * _over_time(size, size, FRAMES)
    return config.count("num_res_blocks") * block


def _spatial_norm(codes: int, size: int) -> int:
    """A norm whose scale and shift follow from the codes; none of those without codes."""
    return layer_norm(size) + (2 * linear(codes, size) if codes else 0)


def _emu3_residual(inputs: int, outputs: int, codes: int) -> int:
    plain = _residual(inputs, outputs) - layer_norm(inputs) - layer_norm(outputs)
    return plain + _spatial_norm(codes, inputs) + _spatial_norm(codes, outputs)


def _emu3_middle(config: Values, size: int, codes: int) -> int:
    attention = 4 * linear(config.count("hidden_size"), config.count("hidden_size"))
    return 2 * _emu3_residual(size, size, codes) + attention + _spatial_norm(codes, size)


def _emu3_levels(
    config: Values, size: int, levels: list[tuple[int, int]], blocks: int, codes: int
) -> int:
    """Residual blocks of each level, with attention in those that the file lists."""
    wide = config.count("hidden_size")
    seen = config.numbers("attn_resolutions") or []
    total = 0
    for level, out in levels:
        total += _emu3_residual(size, out, codes) + (blocks - 1) * _emu3_residual(out, out, codes)
        if level in seen:
            total += blocks * (4 * linear(wide, wide) + _spatial_norm(codes, out))
        size = out
    return total


def _emu3_encoder(config: Values, out: int) -> int:
    levels, first = _channels(config), config.count("base_channels")
    blocks, last = config.count("num_res_blocks"), levels[-1]
    total = square(config.count("in_channels"), first, True)
    total += _emu3_levels(config, first, list(enumerate(levels)), blocks, 0)
    total += sum(square(size, size, True) for size in levels[:-1])
    return total + _emu3_middle(config, last, 0) + layer_norm(last) + square(last, out, True)


def _emu3_decoder(config: Values, latent: int, codes: int) -> int:
    levels, blocks = _channels(config), config.count("num_res_blocks") + 1
    first, last = levels[0], levels[-1]
    total = square(latent, last, True) + _emu3_middle(config, last, codes)
    total += _emu3_levels(config, last, list(enumerate(levels))[::-1], blocks, codes)
    total += sum(square(size, size, True) for size in levels[1:])
    ends = _spatial_norm(codes, first) + square(first, config.count("out_channels"), True)
    return total + ends


TOWERS: Mapping[str, Callable[[Values], int]] = {"janus_vqgan": janus, "emu3_vqgan": emu3}
JOINTS: Mapping[str, Joint] = {"janus": joint, "emu3": nothing}
