"""Gemma 3n and FastVLM: towers of the timm package, whose sizes their names stand for; and what
hears in Gemma 3n, conformer layers as in Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.gemma4 import conformer
from kvpipe.models.towers.joints import Joint, Tower, two_layers
from kvpipe.models.towers.parts import linear

# Architecture and arguments of timm 1.0.31 -> its parameters without a head.
_NAMED = {
    ("mobilenetv5_300m_enc", ()): 294_126_912,
    ("fastvit_mci3", (("inference_mode", True),)): 122_714_208,
    ("fastvit_mci3", ()): 122_875_584,
}
SIDES = [[3, 3], [3, 3]]  # of two convolutions over time and pitch, and how far they step
STEPS = [[2, 2], [2, 2]]


def named(config: Values) -> int | None:
    """None where nobody counted a tower of that name and arguments."""
    arguments = config.section("model_args").raw
    if not all(isinstance(value, (bool, int, str)) for value in arguments.values()):
        return None
    return _NAMED.get((config.word("architecture"), tuple(sorted(arguments.items()))))


def audio(config: Values) -> int | None:
    """Padded by one pitch on either side. None where the convolutions are other than published."""
    sides, steps = config.get("sscp_conv_kernel_size"), config.get("sscp_conv_stride_size")
    if sides not in (None, SIDES) or steps not in (None, STEPS):
        return None
    size, pitches, inputs = config.count("hidden_size"), config.count("input_feat_size"), 1
    total = 0
    for channels in config.numbers("sscp_conv_channel_size") or [128, 32]:
        total += linear(inputs * 9, channels, False) + channels
        pitches, inputs = (pitches - 1) // 2 + 1, channels
    head = size // config.count("conf_num_attention_heads")
    layer = conformer(size, head, config.count("conf_conv_kernel_size"))
    entry = inputs * pitches * size
    return total + entry + config.layers("conf_num_hidden_layers") * layer


def joint(whole: Values, tower: Values, text: Config) -> int:
    """Each tower has a vocabulary of its own, two norms and a matrix."""
    towers = (whole.section("vision_config"), whole.section("audio_config"))
    return sum(
        part.count("hidden_size") * (part.count("vocab_size") + 2 + text.hidden_size)
        for part in towers
    )


TOWERS: Mapping[str, Tower] = {
    "gemma3n_vision": named,
    "gemma3n_audio": audio,
    "timm_wrapper": named,
}
JOINTS: Mapping[str, Joint] = {"gemma3n": joint, "fast_vlm": two_layers}
