"""Towers that see: model_type of the vision part -> its parameters, mergers inside it included.

Read from the classes of transformers; tests hold each against the meta model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.towers.parts import block, layer_norm, linear, patches, places


def clip(config: Values) -> int:
    size = config.count("hidden_size")
    return (
        size  # the class's place
        + patches(config, size, bias=False)
        + (places(config) + 1) * size
        + 2 * layer_norm(size)
        + config.layers("num_hidden_layers") * block(size, config.count("intermediate_size"))
    )


def siglip(config: Values) -> int:
    """Its pooling head is there unless the file says otherwise."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    return _siglip(config, places(config)) + (
        size + block(size, inner) - layer_norm(size) if config.flag("vision_use_head", True) else 0
    )


def siglip2(config: Values) -> int:
    """Places of a number of patches, whatever the size of an image."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    head = size + block(size, inner) - layer_norm(size)
    return _siglip(config, config.count("num_patches")) + (
        head if config.flag("vision_use_head", True) else 0
    )


def idefics(config: Values) -> int:
    return _siglip(config, places(config))


def rotary(config: Values) -> int:
    """As SigLIP, without places and head."""
    return _siglip(config, 0)


def _siglip(config: Values, num_places: int) -> int:
    size = config.count("hidden_size")
    layers = config.layers("num_hidden_layers") * block(size, config.count("intermediate_size"))
    return patches(config, size, bias=True) + num_places * size + layers + layer_norm(size)


def pixtral(config: Values) -> int:
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layer = 4 * size * size + 3 * size * inner + 2 * size
    return patches(config, size, bias=False) + size + config.layers("num_hidden_layers") * layer


def qwen2(config: Values) -> int:
    """hidden_size is the text's here, embed_dim the tower's."""
    size = config.count("embed_dim")
    layers = config.layers("depth") * block(size, int(size * (config.ratio("mlp_ratio", 4) or 4)))
    merger = layer_norm(size) + _merger(config, size, config.count("hidden_size"))
    return patches(config, size, bias=False, frames=True) + layers + merger


def qwen2_5(config: Values) -> int:
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layer = 2 * size + 4 * linear(size, size) + 2 * linear(size, inner) + linear(inner, size)
    merger = size + _merger(config, size, config.count("out_hidden_size"))
    return patches(config, size, bias=False, frames=True) + config.layers("depth") * layer + merger


def qwen3(config: Values) -> int:
    """Some layers' outputs go through mergers of their own, whose norms are as wide as they."""
    size, out = config.count("hidden_size"), config.count("out_hidden_size")
    merger, wide = _merger(config, size, out), size * _merged(config)
    deep = len(config.numbers("deepstack_visual_indexes") or [])
    return (
        patches(config, size, bias=True, frames=True)
        + config.count("num_position_embeddings") * size
        + config.layers("depth") * block(size, config.count("intermediate_size"))
        + layer_norm(size)
        + merger
        + deep * (layer_norm(wide) + merger)
    )


def _merged(config: Values) -> int:
    return config.count("spatial_merge_size") ** 2


def _merger(config: Values, size: int, out: int) -> int:
    """Places that are merged into one, as wide as all of them, then as the text."""
    wide = size * _merged(config)
    return linear(wide, wide) + linear(wide, out)


def glm4(config: Values) -> int:
    """Layers as wide inside as the text; one gated layer of intermediate_size joins them."""
    size, out = config.count("hidden_size"), config.count("out_hidden_size")
    bias = config.flag("attention_bias")
    layer = 2 * size + 3 * linear(size, size, bias) + linear(size, size, False) + 3 * size * out
    merger = out * out + layer_norm(out) + 3 * out * config.count("intermediate_size")
    return (
        patches(config, size, bias=True, frames=True)
        + places(config) * size
        + config.layers("depth") * layer
        + merger
        + 2 * size
        + linear(size * _merged(config), out)
    )


def internvl(config: Values) -> int:
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    is_rms = config.word("norm_type", "layer_norm") == "rms_norm"
    norm = size if is_rms else layer_norm(size)
    bias, qk_norm = config.flag("attention_bias"), config.flag("use_qk_norm")
    layer = 2 * size + 3 * linear(size, size, bias) + linear(size, size)
    layer += linear(size, inner) + linear(inner, size) + 2 * norm + (2 * size if qk_norm else 0)
    ends = (size if config.flag("use_mask_token") else 0) + (
        0 if config.flag("use_mean_pooling", True) else norm
    )
    return (
        size
        + (config.flag("use_absolute_position_embeddings", True) * (places(config) + 1) * size)
        + patches(config, size, bias=True)
        + config.layers("num_hidden_layers") * layer
        + ends
    )


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "idefics3_vision": idefics,
    "smolvlm_vision": idefics,
    "video_llama_3_vision": rotary,
    "pixtral": pixtral,
    "qwen2_vl_vision": qwen2,
    "qwen2_5_vl_vision": qwen2_5,
    "qwen2_5_omni_vision_encoder": qwen2_5,
    "qwen3_vl_vision": qwen3,
    "qwen3_vl_moe_vision": qwen3,
    "qwen3_omni_moe_vision_encoder": qwen3,
    "qwen3_5_vision": qwen3,
    "qwen3_5_moe_vision": qwen3,
    "cohere_compass_vision": qwen3,
    "glm4v_vision": glm4,
    "glm4v_moe_vision": glm4,
    "internvl_vision": internvl,
}
