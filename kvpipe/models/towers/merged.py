"""Towers whose patches are merged, several into one row of the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.joints import Given, Joint, nothing
from kvpipe.models.towers.joints import internvl as internvl_joint
from kvpipe.models.towers.parts import block, gated, layer_norm, linear, patches, places
from kvpipe.models.towers.vision import internvl


def kimi(config: Values) -> int:
    """Places have a row and a column of a table of their own size."""
    size = config.count("hidden_size")
    table = config.count("pos_emb_height") * config.count("pos_emb_width") * size
    layers = config.layers("num_hidden_layers") * block(size, config.count("intermediate_size"))
    return patches(config, size, bias=True) + table + layers + layer_norm(size)


def kimi_joint(whole: Values, tower: Values, text: Config) -> int:
    wide = tower.count("hidden_size") * prod(tower.numbers("merge_kernel_size") or [2, 2])
    norm = layer_norm(whole.count("projection_hidden_size"))
    return norm + linear(wide, wide) + linear(wide, text.hidden_size)


def glm_ocr(config: Values) -> int:
    """GLM-4V's with norms of q and k, biases by choice, and a merger as wide as pixels are many."""
    size, out = config.count("hidden_size"), config.count("out_hidden_size")
    bias, head = config.flag("attention_bias", True), size // config.count("num_heads")
    layer = 2 * size + linear(size, 3 * size, bias) + linear(size, size, bias) + 2 * head
    layer += gated(size, config.count("intermediate_size"), bias)
    merger = out * out + layer_norm(out) + gated(out, out * config.count("in_channels"))
    down = linear(size * config.count("spatial_merge_size") ** 2, out)
    ends = patches(config, size, bias=True, frames=True) + size
    return ends + config.layers("depth") * layer + merger + down


def exaone(config: Values) -> int:
    """Qwen2.5-VL's with K and V of fewer heads."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    head = size // config.count("num_heads")
    shared = config.count("num_key_value_heads") * head
    layer = 2 * size + linear(size, size + 2 * shared) + linear(size, size)
    layer += gated(size, inner, True)
    wide = size * config.count("spatial_merge_size") ** 2
    merger = size + linear(wide, wide) + linear(wide, config.count("out_hidden_size"))
    return patches(config, size, bias=False, frames=True) + config.layers("depth") * layer + merger


def paddleocr(config: Values) -> int:
    size = config.count("hidden_size")
    layers = config.layers("num_hidden_layers") * block(size, config.count("intermediate_size"))
    return patches(config, size, bias=True) + places(config) * size + layers + layer_norm(size)


def paddleocr_joint(whole: Values, tower: Values, text: Config) -> int:
    size = tower.count("hidden_size")
    wide = size * tower.count("spatial_merge_size") ** 2
    return layer_norm(size) + linear(wide, wide) + linear(wide, text.hidden_size)


def minicpm(config: Values) -> int:
    """One layer in the middle attends within windows, then merges each into a row."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    merged = prod(config.numbers("window_kernel_size") or [2, 2])
    merger = 4 * linear(size, size) + layer_norm(size) + layer_norm(size * merged)
    merger += linear(size * merged, inner * merged) + linear(inner * merged, size)
    return paddleocr(config) + merger


def minicpm_joint(whole: Values, tower: Values, text: Config) -> int:
    """Merges again, and again; the last time as wide as the text."""
    size = tower.count("hidden_size")
    wide = size * prod(whole.numbers("merge_kernel_size") or [2, 2])
    times = whole.count("merger_times")
    each = layer_norm(wide) + linear(wide, wide)
    return times * each + (times - 1) * linear(wide, size) + linear(wide, text.hidden_size)


def minimax(config: Values) -> int:
    size = config.count("hidden_size")
    layers = config.layers("num_hidden_layers") * block(size, config.count("intermediate_size"))
    return patches(config, size, bias=False, frames=True) + layer_norm(size) + layers


def minimax_joint(whole: Values, tower: Values, text: Config) -> int:
    """Every patch, then those that are merged, each through two layers."""
    size, inner = text.hidden_size, whole.count("projector_hidden_size", text.hidden_size)
    merged = size * tower.count("spatial_merge_size") ** 2
    first = linear(tower.count("hidden_size"), inner) + linear(inner, size)
    return first + linear(merged, inner) + linear(inner, size)


def hyperclovax(whole: Values, tower: Values, text: Config) -> int:
    return linear(tower.count("out_hidden_size"), text.hidden_size)


def granite_docling(config: Values) -> int:
    """A coarse route and, by choice, a fine one; some layers' outputs are merged on their own."""
    size, out = config.count("hidden_size"), config.count("out_hidden_size")
    factor = config.count("scale_factor")
    deep = len(config.numbers("deepstack_visual_indexes") or [])
    routes = [factor**2, *([(factor // 2) ** 2] if config.flag("use_fine_route", True) else [])]
    merger = layer_norm(size) + 2 * layer_norm(out) + out * out
    for route in routes:
        wide = size * route
        own = layer_norm(wide) + linear(wide, out) + linear(out, out)
        merger += wide * out + deep * own
    return paddleocr(config) + merger


def ernie(config: Values) -> int:
    size = config.count("hidden_size")
    layers = config.layers("depth") * block(size, config.count("intermediate_size"))
    return patches(config, size, bias=False) + layers + layer_norm(size)


def ernie_joint(whole: Values, tower: Values, text: Config) -> int:
    """Patches are merged, then frames, each through two layers and a norm."""
    wide = tower.count("hidden_size") * tower.count("spatial_merge_size") ** 2
    frames = linear(wide * tower.count("temporal_merge_size"), wide) + linear(wide, wide)
    merger = 2 * linear(wide, wide) + frames + 2 * layer_norm(wide)
    return merger + linear(wide, text.hidden_size) + text.hidden_size


def hunyuan(config: Values) -> int:
    """Two convolutions merge patches; tokens that begin, end and part an image."""
    size = config.count("hidden_size")
    heads, shared = config.count("num_attention_heads"), config.number("num_key_value_heads")
    kept = size // heads * (shared or heads)
    layer = 2 * linear(size, size) + 2 * linear(size, kept) + 2 * layer_norm(size)
    inner, out = config.count("intermediate_size"), config.count("text_hidden_size")
    layer += linear(size, inner) + linear(inner, size)
    side = config.count("max_image_size") // config.count("patch_size")
    merger = linear(size * config.count("spatial_merge_size") ** 2, 2 * size)
    merger += linear(2 * size, 4 * size) + linear(4 * size, out) + 4 * size + size + 4 * out
    ends = patches(config, size, bias=True) + (side**2 + 1) * size
    return ends + config.layers("num_hidden_layers") * layer + merger


def as_wide_as_the_text(whole: Values, text: Config) -> Mapping[str, Mapping[str, int]]:
    return {"vision_config": {"text_hidden_size": text.hidden_size}}


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "kimi_k25_vision": kimi,
    "glm_ocr_vision": glm_ocr,
    "exaone4_5_vision": exaone,
    "paddleocr_vl_vision": paddleocr,
    "minicpmv4_6_vision": minicpm,
    "minicpmv4_7_vision": minicpm,
    "minicpm_ocr_vision": minicpm,
    "minimax_m3_vl_vision": minimax,
    "granite_docling_vision": granite_docling,
    "qianfan_ocr_vision": internvl,
    "hunyuan_vl_vision": hunyuan,
    "ernie4_5_vl_moe_vision": ernie,
}
JOINTS: Mapping[str, Joint] = {
    "kimi_k25": kimi_joint,
    "glm_ocr": nothing,
    "exaone4_5": nothing,
    "paddleocr_vl": paddleocr_joint,
    "minicpmv4_6": minicpm_joint,
    "minicpmv4_7": minicpm_joint,
    "minicpm_ocr": minicpm_joint,
    "minimax_m3_vl": minimax_joint,
    "hyperclovax_vision_v2": hyperclovax,
    "granite_docling": nothing,
    "qianfan_ocr": internvl_joint,
    "hunyuan_vl": nothing,
    "ernie4_5_vl_moe": ernie_joint,
}
GIVEN: Mapping[str, Given] = {"hunyuan_vl": as_wide_as_the_text}
