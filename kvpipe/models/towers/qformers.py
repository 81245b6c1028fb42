"""Towers whose outputs queries of a BERT-like model gather: BLIP-2, InstructBLIP, Granite."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.joints import Given, Joint
from kvpipe.models.towers.parts import layer_norm, linear, patches, places

CORNERS = 4


def blip_vision(config: Values) -> int:
    """q, k and v of one matrix, whose bias is a choice."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layer = linear(size, 3 * size, config.flag("qkv_bias", True)) + linear(size, size)
    layer += linear(size, inner) + linear(inner, size) + 2 * layer_norm(size)
    ends = size + (places(config) + 1) * size + layer_norm(size)
    return ends + patches(config, size, bias=True) + config.layers("num_hidden_layers") * layer


def qformer(config: Values) -> int:
    """BLIP-2's has MLPs for text only if asked, and no words of its own."""
    reads = config.flag("use_qformer_text_input")
    return _layers(config, reads) + layer_norm(config.count("hidden_size"))


def reading_qformer(config: Values) -> int:
    size = config.count("hidden_size")
    words = config.count("vocab_size") + config.count("max_position_embeddings")
    return _layers(config, True) + layer_norm(size) + words * size


def _layers(config: Values, reads: bool) -> int:
    """Every few layers look at the tower. reads: text has a second MLP."""
    size, inner = config.count("hidden_size"), config.count("intermediate_size")
    layers, seen = config.layers("num_hidden_layers"), config.count("encoder_hidden_size")
    feed = linear(size, inner) + linear(inner, size) + layer_norm(size)
    layer = 4 * linear(size, size) + layer_norm(size) + (2 if reads else 1) * feed
    crossing = 2 * linear(size, size) + 2 * linear(seen, size) + layer_norm(size)
    return layers * layer + -(-layers // config.count("cross_attention_frequency")) * crossing


def blip2(whole: Values, tower: Values, text: Config) -> int:
    size = whole.section("qformer_config").count("hidden_size")
    return whole.count("num_query_tokens", 32) * size + linear(size, text.hidden_size)


def granite_speech(whole: Values, tower: Values, text: Config) -> int:
    """Queries of a window of sound."""
    size = whole.section("projector_config").count("hidden_size")
    queries = whole.count("window_size") // whole.count("downsample_rate")
    return queries * size + linear(size, text.hidden_size)


def granite4_vision(whole: Values, tower: Values, text: Config) -> int:
    """Queries of windows, one model of them for each layer that is looked at and for each corner.
    The one that its section describes was counted there."""
    size, queries = tower.count("hidden_size"), whole.section("qformer_config")
    sides = whole.word("downsample_rate", "4/8").split("/")
    if len(sides) != 2 or not all(side.isdecimal() for side in sides):
        raise whole.wrong("downsample_rate", "two sides, such as 4/8", "/".join(sides))
    rows = sum(int(side) ** 2 for side in sides) * size
    each = layer_norm(size) + rows + linear(size, text.hidden_size)
    number = len(whole.get("deepstack_layer_map") or ()) + CORNERS
    return text.hidden_size + number * each + (number - 1) * qformer(queries)


def seen_by_queries(whole: Values, text: Config) -> Mapping[str, Mapping[str, int]]:
    size = whole.section("vision_config").count("hidden_size")
    return {"qformer_config": {"encoder_hidden_size": size}}


def as_wide_as_seen(whole: Values, text: Config) -> Mapping[str, Mapping[str, int]]:
    size = whole.section("vision_config").count("hidden_size")
    return {"qformer_config": {"hidden_size": size, "encoder_hidden_size": size}}


TOWERS: Mapping[str, Callable[[Values], int]] = {
    "blip_2_vision_model": blip_vision,
    "instructblip_vision_model": blip_vision,
    "instructblipvideo_vision_model": blip_vision,
    "blip_2_qformer": qformer,
    "instructblip_qformer": reading_qformer,
    "instructblipvideo_qformer": reading_qformer,
}
JOINTS: Mapping[str, Joint] = {
    "blip-2": blip2,
    "instructblip": blip2,
    "instructblipvideo": blip2,
    "granite_speech": granite_speech,
    "granite_speech_plus": granite_speech,
    "granite4_vision": granite4_vision,
}
GIVEN: Mapping[str, Given] = {
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo"), seen_by_queries),
    "granite4_vision": as_wide_as_seen,
}
