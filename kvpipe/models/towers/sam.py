"""SAM's encoder of large images, and models that read pages with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.joints import Joint
from kvpipe.models.towers.parts import gated, layer_norm, linear, patches, side, square
from kvpipe.models.towers.vision import clip

QUERIES = 144 + 256  # of images of 768 and of 1,024 pixels


def sam(config: Values) -> int:
    """Layers see a window each, some the whole image; a neck narrows what comes out."""
    size, edge = (
        config.count("hidden_size"),
        side(config, "image_size") // side(config, "patch_size"),
    )
    places = edge**2 * size if config.flag("use_abs_pos", True) else 0
    layers = sum(
        _layer(config, size, edge if index in _global(config) else config.number("window_size"))
        for index in range(config.layers("num_hidden_layers"))
    )
    return places + patches(config, size, bias=True) + layers + neck(config)


def _global(config: Values) -> frozenset[int]:
    return frozenset(config.numbers("global_attn_indexes") or ())


def _layer(config: Values, size: int, edge: int) -> int:
    """edge: patches along one side of what the layer sees, which has an embedding a distance."""
    inner = config.number("mlp_dim") or int(size * (config.ratio("mlp_ratio", 4) or 4))
    head = size // config.count("num_attention_heads")
    distances = 2 * (2 * edge - 1) * head if config.flag("use_rel_pos", True) else 0
    attention = linear(size, 3 * size, config.flag("qkv_bias", True)) + linear(size, size)
    feed = linear(size, inner) + linear(inner, size)
    return 2 * layer_norm(size) + distances + attention + feed


def neck(config: Values) -> int:
    size, out = config.count("hidden_size"), config.count("output_channels")
    return size * out + square(out, out) + 2 * layer_norm(out)


def narrowed(config: Values) -> int:
    """Two convolutions after the neck, each of which halves the sides and doubles the channels."""
    out = config.count("output_channels")
    return square(out, 2 * out) + square(2 * out, 4 * out)


def got_ocr2(whole: Values, tower: Values, text: Config) -> int:
    """Two convolutions, of which the second is as wide as the text."""
    out, size = tower.count("output_channels"), text.hidden_size
    return square(out, 2 * out) + square(2 * out, size) + linear(size, size)


def reader(config: Values) -> int:
    """DeepSeek-OCR 2: a small language model reads what SAM sees, and queries of two sizes."""
    seeing, reading = config.section("sam_config"), config.section("encoder_config")
    size, inner = reading.count("hidden_size"), reading.count("intermediate_size")
    heads = reading.count("num_attention_heads")
    shared = size // heads * reading.count("num_key_value_heads", heads)
    layer = linear(size, size) + 2 * linear(size, shared) + size * size
    layer += gated(size, inner) + 2 * size
    return _seen(seeing) + reading.layers("num_hidden_layers") * layer + size + QUERIES * size


def _seen(config: Values) -> int:
    """SAM, and convolutions to the width of what reads it."""
    first, second = (config.numbers("downsample_channels") or [512, 896])[:2]
    return sam(config) + square(config.count("output_channels"), first) + square(first, second)


def reader_joint(whole: Values, tower: Values, text: Config) -> int:
    seen = tower.section("encoder_config").count("hidden_size")
    return text.hidden_size + linear(seen, text.hidden_size)


def two_towers(config: Values) -> int:
    """Unlimited-OCR: CLIP, without its last norm, sees SAM's outputs as its patches."""
    seeing, second = config.section("sam_config"), config.section("encoder_config")
    size = second.count("hidden_size")
    return _seen(seeing) + clip(second) - patches(second, size, bias=False) - layer_norm(size)


def two_towers_joint(whole: Values, tower: Values, text: Config) -> int:
    """Both, side by side; tokens that end rows and parts of a page."""
    channels = tower.section("sam_config").numbers("downsample_channels") or [512, 1024]
    wide = tower.section("encoder_config").count("hidden_size") + channels[-1]
    return 2 * text.hidden_size + linear(wide, text.hidden_size)


def hybrid(whole: Values, tower: Values, text: Config) -> int:
    """DeepSeek-VL of 7B: SigLIP and SAM, side by side, in halves of the text's width."""
    high, low = whole.section("high_res_vision_config"), whole.section("vision_config")
    size, half = text.hidden_size, text.hidden_size // 2
    joined = linear(low.count("hidden_size"), half)
    joined += linear(4 * high.count("output_channels"), half) + linear(size, size)
    return 1 + neck(high) + narrowed(high) + joined


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "sam_vision_model": sam,
    "got_ocr2_vision": sam,
    "pp_chart2table_vision": sam,
    "deepseek_ocr2_vision": reader,
    "unlimited_ocr_vision": two_towers,
}
JOINTS: Mapping[str, Joint] = {
    "got_ocr2": got_ocr2,
    "pp_chart2table": got_ocr2,
    "deepseek_vl_hybrid": hybrid,
    "deepseek_ocr2": reader_joint,
    "unlimited_ocr": two_towers_joint,
}
