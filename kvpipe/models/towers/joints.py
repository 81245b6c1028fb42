"""What joins towers to the text: model_type of the whole -> its parameters beside the towers'.

whole, tower, text: their values. Types whose towers end as wide as the text have nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.audio import width
from kvpipe.models.towers.parts import layer_norm, linear
from kvpipe.models.towers.vision import clip

# Of a section; None where its values are not among those that are known.
Tower = Callable[[Values], int | None]
Joint = Callable[[Values, Values, Config], int]
# What the class of the whole gives its sections, whatever the file says: section -> key -> value.
Given = Callable[[Values, Config], Mapping[str, Mapping[str, int]]]
# Sections that the class of the whole builds where the file has none: type -> section -> values.
Supplied = Mapping[str, Mapping[str, Mapping[str, Any]]]
# Sections by choice that nobody counts yet: with one of them the towers are not known.
Uncounted = Mapping[str, tuple[str, ...]]


def nothing(whole: Values, tower: Values, text: Config) -> int:
    return 0


def two_layers(whole: Values, tower: Values, text: Config) -> int:
    """LLaVA's: the outputs of one layer of the tower, or of several side by side."""
    layers = whole.get("vision_feature_layer")
    count = len(layers) if isinstance(layers, list) else 1
    bias = whole.flag("multimodal_projector_bias", True)
    size, wide = text.hidden_size, tower.count("hidden_size") * count
    return linear(wide, size, bias) + linear(size, size, bias)


def with_newline(whole: Values, tower: Values, text: Config) -> int:
    """And a token that ends a row of an image's parts."""
    return two_layers(whole, tower, text) + text.hidden_size


def lfm2(whole: Values, tower: Values, text: Config) -> int:
    wide = tower.count("hidden_size") * whole.count("downsample_factor") ** 2
    inner, bias = whole.count("projector_hidden_size"), whole.flag("projector_bias", True)
    normed = layer_norm(wide) if whole.flag("projector_use_layernorm", True) else 0
    return normed + linear(wide, inner, bias) + linear(inner, text.hidden_size, bias)


def gemma3(whole: Values, tower: Values, text: Config) -> int:
    size = tower.count("hidden_size")
    return linear(size, text.hidden_size, False) + size


def paligemma(whole: Values, tower: Values, text: Config) -> int:
    return linear(tower.count("hidden_size"), whole.count("projection_dim"))


def aya(whole: Values, tower: Values, text: Config) -> int:
    """Places side by side; half of what comes out of the first matrix gates the other half."""
    wide = tower.count("hidden_size") * whole.count("downsample_factor") ** 2
    inner = whole.count("alignment_intermediate_size", text.hidden_size)
    return layer_norm(wide) + linear(wide, inner) + linear(inner // 2, text.hidden_size)


def cohere2(whole: Values, tower: Values, text: Config) -> int:
    wide = tower.count("hidden_size") * whole.count("downsample_factor") ** 2
    inner = whole.count("alignment_intermediate_size")
    return linear(wide, inner) + linear(inner // 2, text.hidden_size)


def idefics3(whole: Values, tower: Values, text: Config) -> int:
    wide = tower.count("hidden_size") * whole.count("scale_factor") ** 2
    return linear(wide, text.hidden_size, False)


def mistral3(whole: Values, tower: Values, text: Config) -> int:
    size, out = tower.count("hidden_size"), text.hidden_size
    bias = whole.flag("multimodal_projector_bias")
    merged = linear(size * whole.count("spatial_merge_size") ** 2, size, False)
    return size + merged + linear(size, out, bias) + linear(out, out, bias)


def internvl(whole: Values, tower: Values, text: Config) -> int:
    ratio = whole.ratio("downsample_ratio", 0.5) or 0.5
    wide = tower.count("hidden_size") * int(1 / ratio) ** 2
    return (
        layer_norm(wide)
        + linear(wide, text.hidden_size)
        + linear(text.hidden_size, text.hidden_size)
    )


def one_layer(whole: Values, tower: Values, text: Config) -> int:
    return linear(width(tower), text.hidden_size)


def two_plain(whole: Values, tower: Values, text: Config) -> int:
    size = text.hidden_size
    return linear(tower.count("hidden_size"), size) + linear(size, size)


def after_sound(whole: Values, tower: Values, text: Config) -> int:
    """Two matrices after Whisper's layers."""
    size, bias = text.hidden_size, whole.flag("projector_bias", True)
    return linear(width(tower), size, bias) + linear(size, size, bias)


def voxtral(whole: Values, tower: Values, text: Config) -> int:
    """Four columns of sound side by side, which are as wide as the tower's MLP."""
    size = text.hidden_size
    return (tower.count("intermediate_size") + size) * size


def realtime(whole: Values, tower: Values, text: Config) -> int:
    """Some columns of sound side by side."""
    size = text.hidden_size
    return (width(tower) * whole.count("downsample_factor") + size) * size


def glmasr(whole: Values, tower: Values, text: Config) -> int:
    size = text.hidden_size
    return linear(tower.count("intermediate_size"), 2 * size) + linear(2 * size, size)


def moss(whole: Values, tower: Values, text: Config) -> int:
    size, bias = text.hidden_size, whole.flag("projector_bias", True)
    wide = width(tower) * whole.count("audio_merge_size")
    return linear(wide, size, bias) + linear(size, size, bias) + layer_norm(size)


def video_llava(whole: Values, tower: Values, text: Config) -> int:
    """Images and videos have a tower each, of one shape."""
    return two_layers(whole, tower, text) + clip(tower)


JOINTS: Mapping[str, Joint] = {
    "voxtral": voxtral,
    "glmasr": glmasr,
    "voxtral_realtime": realtime,
    "moss_transcribe_diarize": moss,
    "video_llava": video_llava,
    "cohere_compass": nothing,
    "qwen3_asr": nothing,
    "llava": two_layers,
    "llava_next": with_newline,
    "llava_next_video": with_newline,
    "llava_onevision": with_newline,
    "lfm2_vl": lfm2,
    "gemma3": gemma3,
    "shieldgemma2": gemma3,
    "paligemma": paligemma,
    "aya_vision": aya,
    "cohere2_vision": cohere2,
    "idefics3": idefics3,
    "smolvlm": idefics3,
    "mistral3": mistral3,
    "mistral_large4": mistral3,
    "lighton_ocr": mistral3,
    "internvl": internvl,
    "video_llama_3": two_plain,
    "qwen2_audio": one_layer,
    "audioflamingo3": after_sound,
    "musicflamingo": after_sound,
    **dict.fromkeys(
        (
            "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe",
            "cosmos3_omni", "glm4v", "glm46v", "glmga", "glm4v_moe", "qwen2_5_omni_thinker",
            "qwen3_omni_moe_thinker",
        ),
        nothing,
    ),
}  # fmt: skip
SUPPLIED: Supplied = {"voxtral": {"audio_config": {"model_type": "voxtral_encoder"}}}
