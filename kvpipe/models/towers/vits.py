"""Vision transformers that are one model's own, and what joins them to its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.joints import Given, Joint, Supplied, Uncounted, nothing
from kvpipe.models.towers.parts import (
    block,
    gated,
    layer_norm,
    linear,
    patches,
    places,
    ratio,
    square,
)
from kvpipe.models.towers.vision import idefics

RATIOS = 8  # of an image's sides, which the class of Llama 3.2 Vision lists
DEFAULT_VISION_HIDDEN_SIZE = 1280  # of Nemotron H Omni's class


def janus(config: Values) -> int:
    size = config.count("hidden_size")
    inner, bias = int(size * ratio(config, "mlp_ratio", 4)), config.flag("attention_bias", True)
    layer = 3 * linear(size, size, bias) + linear(size, size) + 2 * layer_norm(size)
    layer += linear(size, inner) + linear(inner, size)
    layer += 2 * layer_norm(size) if config.flag("use_qk_norm") else 0
    ends = patches(config, size, bias=True) + places(config) * size + layer_norm(size)
    return ends + config.layers("num_hidden_layers") * layer


def llama4(config: Values) -> int:
    """The class's place comes last; an MLP takes what a shuffle of pixels made wider."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    ends = patches(config, size, bias=False) + (places(config) + 2) * size + 2 * layer_norm(size)
    layers = config.layers("num_hidden_layers") * block(size, inner)
    out = config.count("projector_output_dim")
    return ends + layers + inner * config.count("projector_input_dim") + out * out


def llama4_joint(whole: Values, tower: Values, text: Config) -> int:
    return tower.count("vision_output_dim") * text.hidden_size


def ovis2(config: Values) -> int:
    """Its head says which visual word a patch is."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layer = 4 * linear(size, size, config.flag("qkv_bias")) + 2 * size
    layer += gated(size, inner, config.flag("mlp_bias"))
    ends = patches(config, size, bias=True) + places(config) * size + 2 * size
    words = config.count("vocab_size") - config.number("num_visual_indicator_tokens")
    head = size * config.count("hidden_stride") ** 2 * words + layer_norm(words)
    return ends + config.layers("num_hidden_layers") * layer + head


def ovis2_joint(whole: Values, tower: Values, text: Config) -> int:
    return tower.count("vocab_size") * whole.count("hidden_size")


def perceiver(config: Values) -> int:
    """Latent rows that gather what the tower saw."""
    size, head = config.count("hidden_size"), config.count("resampler_head_dim")
    wide = config.count("resampler_n_heads") * head
    shared = config.count("num_key_value_heads") * head
    layer = 3 * size + 2 * size * wide + 2 * size * shared + gated(size, 4 * size)
    ends = config.count("resampler_n_latents") * size + size
    return ends + config.layers("resampler_depth") * layer


def idefics2_joint(whole: Values, tower: Values, text: Config) -> int:
    seen, inner = whole.section("vision_config").count("hidden_size"), text.intermediate_size
    return 2 * seen * inner + inner * text.hidden_size


def aria_joint(whole: Values, tower: Values, text: Config) -> int:
    """Queries, as many as the largest image needs, that attend to the patches."""
    size, out = tower.count("hidden_size"), text.hidden_size
    queries = whole.section("projector_patch_to_query_dict").raw
    most = max((n for n in queries.values() if isinstance(n, int)), default=256)
    attention = 3 * size * size + 5 * linear(size, size) + 3 * layer_norm(size)
    return most * size + attention + size * out + out * out


def cosmos3_edge(config: Values) -> int:
    size = config.count("hidden_size")
    layers = config.layers("num_hidden_layers") * block(size, config.count("intermediate_size"))
    ends = patches(config, size, bias=True) + config.count("num_patches") * size + layer_norm(size)
    return ends + layers


def cosmos3_edge_joint(whole: Values, tower: Values, text: Config) -> int:
    size, inner = tower.count("hidden_size"), whole.count("projector_hidden_size")
    wide = size * tower.count("spatial_merge_size") ** 2
    return layer_norm(size) + linear(wide, inner) + linear(inner, text.hidden_size)


def step3p5(config: Values) -> int:
    """Each half of a layer is scaled; two convolutions leave a quarter of the rows."""
    size = config.count("hidden_size")
    inner = int(size * ratio(config, "mlp_ratio", 4))
    layers = config.layers("num_hidden_layers") * (block(size, inner) + 2 * size)
    ends = patches(config, size, bias=False) + places(config) * size + layer_norm(size)
    return ends + layers + square(size, 2 * size, True) + square(2 * size, 4 * size, True)


def step3p7_joint(whole: Values, tower: Values, text: Config) -> int:
    return linear(4 * tower.count("hidden_size"), text.hidden_size, whole.flag("projector_bias"))


def two_layers_plain(whole: Values, tower: Values, text: Config) -> int:
    """DeepSeek-VL's, whose tower is the only vision part."""
    size = text.hidden_size
    return linear(tower.count("hidden_size"), size) + linear(size, size)


def vipllava(whole: Values, tower: Values, text: Config) -> int:
    """Of five layers of the tower, side by side."""
    layers = whole.get("vision_feature_layer")
    wide = tower.count("hidden_size") * (len(layers) if isinstance(layers, list) else 1)
    size = text.hidden_size
    return layer_norm(wide) + linear(wide, size) + linear(size, size)


def fuyu(whole: Values, tower: Values, text: Config) -> int:
    """No tower: patches go straight to the text."""
    return patches(whole, text.hidden_size, bias=True)


def as_wide_as_the_text(whole: Values, text: Config) -> Mapping[str, Mapping[str, int]]:
    return {"perceiver_config": {"hidden_size": text.hidden_size}}


def radio(config: Values) -> int:
    """Layers with scales; patches of pixels, and by choice of frames; classes and registers."""
    size = config.count("hidden_size")
    inner, bias = int(size * ratio(config, "mlp_ratio", 4)), config.flag("qkv_bias", True)
    layer = 3 * linear(size, size, bias) + linear(size, size) + 2 * layer_norm(size) + 2 * size
    if config.flag("use_swiglu_ffn"):
        layer += gated(size, -(-int(inner * 2 / 3) // 8) * 8, True)
    else:
        layer += linear(size, inner) + linear(inner, size)
    patch = config.count("patch_size")
    kinds = 1 + config.number("video_temporal_patch_size")
    pixels = kinds * config.count("num_channels") * patch**2
    rows = (config.count("max_img_size") // patch) ** 2
    rows += config.number("num_cls_tokens") + config.number("num_registers")
    return (rows + pixels) * size + config.layers("num_hidden_layers") * layer


def nemotron_h_omni(whole: Values, tower: Values, text: Config) -> int:
    """Of patches side by side. The class refuses a tower of other frames than the whole's."""
    frames = tower.number("video_temporal_patch_size")
    if whole.number("video_temporal_patch_size") != frames:
        got = whole.number("video_temporal_patch_size")
        raise whole.wrong("video_temporal_patch_size", f"{frames}, as in vision_config", got)
    merged = int(1 / ratio(whole, "downsample_ratio", 0.5)) ** 2
    wide = _vision_hidden_size(whole) * merged
    inner = whole.count("projector_hidden_size")
    return wide + wide * inner + inner * text.hidden_size


def _vision_hidden_size(whole: Values) -> int:
    """The older name counts where the newer one is missing or says the class's default."""
    size, older = whole.count("vision_hidden_size"), whole.number("vit_hidden_size")
    return older or size if size == DEFAULT_VISION_HIDDEN_SIZE else size


def mllama(config: Values) -> int:
    """Tiles of an image have places of their own, thrice; some layers' outputs stand side by side
    before the last ones, which are gated."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layer = 4 * size * size + linear(size, inner) + linear(inner, size) + 2 * layer_norm(size)
    last = config.count("num_global_layers")
    layers = (config.layers("num_hidden_layers") + last) * layer + 2 * last
    rows = places(config) + 1
    ratios = config.get("supported_aspect_ratios")
    kinds = len(ratios) if isinstance(ratios, list) else RATIOS
    tiles = (kinds + 1) * config.count("max_num_tiles") * size
    gates = 3
    ends = size + patches(config, size, bias=False) + rows * size + 2 * layer_norm(size)
    return ends + layers + tiles * (rows + 2) + gates


def mllama_joint(whole: Values, tower: Values, text: Config) -> int:
    return linear(tower.count("vision_output_dim"), text.hidden_size)


def molmo2(config: Values) -> int:
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layer = _own_heads(config, size) + linear(size, inner) + linear(inner, size)
    layer += 2 * layer_norm(size)
    ends = (
        patches(config, size, bias=True)
        + config.count("num_position_embeddings", places(config)) * size
    )
    return ends + config.layers("num_hidden_layers") * layer


def _own_heads(config: Values, size: int, inputs: int = 0) -> int:
    """Attention whose head size and K/V heads are keys. inputs: of q, k and v, if not size."""
    head, bias = config.count("head_dim"), config.flag("attention_bias", True)
    wide, shared = (head * config.count(f"num_{kind}_heads") for kind in ("attention", "key_value"))
    seen = inputs or size
    return linear(seen, wide, bias) + 2 * linear(seen, shared, bias) + linear(wide, size, bias)


def molmo2_adapter(config: Values) -> int:
    """Attention over layers' outputs side by side, and a gated MLP."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    seen = size * len(config.get("vision_feature_layer") or ())
    bias = config.flag("mlp_bias")
    out = config.count("text_hidden_size")
    return _own_heads(config, size, seen) + 2 * linear(size, inner, bias) + inner * out


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "janus_vision_model": janus,
    "llama4_vision_model": llama4,
    "ovis2_vision": ovis2,
    "idefics2_vision": idefics,
    "idefics2_perceiver": perceiver,
    "cosmos3_edge_vision": cosmos3_edge,
    "step3p5_vision": step3p5,
    "radio": radio,
    "mllama_vision_model": mllama,
    "molmo2_vision": molmo2,
    "molmo2_adapter": molmo2_adapter,
}
JOINTS: Mapping[str, Joint] = {
    "llama4": llama4_joint,
    "ovis2": ovis2_joint,
    "idefics2": idefics2_joint,
    "aria": aria_joint,
    "cosmos3_edge": cosmos3_edge_joint,
    "step3p7": step3p7_joint,
    "deepseek_vl": two_layers_plain,
    "vipllava": vipllava,
    "fuyu": fuyu,
    "mllama": mllama_joint,
    "molmo2": nothing,
    "nemotron_h_omni": nemotron_h_omni,
}
GIVEN: Mapping[str, Given] = {"idefics2": as_wide_as_the_text}
SUPPLIED: Supplied = {
    "nemotron_h_omni": {"vision_config": {"model_type": "radio", "video_temporal_patch_size": 2}}
}
UNCOUNTED: Uncounted = {"nemotron_h_omni": ("audio_config", "sound_config")}
