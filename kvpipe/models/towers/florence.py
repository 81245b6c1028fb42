"""Florence-2: four stages of blocks that attend over places, then over channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvpipe.models._values import Values
from kvpipe.models.families.base import Config
from kvpipe.models.towers.joints import Joint
from kvpipe.models.towers.parts import layer_norm, linear, ratio, square

BOTH = 2  # over places, over channels


def vision(config: Values) -> int:
    sizes, depths = _of_stages(config, "embed_dim"), _of_stages(config, "depths")
    sides, normed = _of_stages(config, "patch_size"), config.get("patch_prenorm") or []
    inputs, total = config.count("in_channels"), 0
    for size, depth, side, is_before in zip(sizes, depths, sides, normed, strict=False):
        total += square(inputs, size, True, side) + layer_norm(inputs if is_before else size)
        total += depth * BOTH * _block(config, size)
        inputs = size
    return total


def _of_stages(config: Values, key: str) -> list[int]:
    found = config.numbers(key)
    if not found:
        raise config.wrong(key, "a number for each stage", found)
    return found


def _block(config: Values, size: int) -> int:
    """Two convolutions of each channel alone, attention, an MLP."""
    inner = int(size * ratio(config, "mlp_ratio", 4))
    attention = linear(size, 3 * size, config.flag("qkv_bias", True)) + linear(size, size)
    feed = linear(size, inner) + linear(inner, size)
    return 2 * linear(9, size) + 2 * layer_norm(size) + attention + feed


def joint(whole: Values, tower: Values, text: Config) -> int:
    """Rows and columns have embeddings of half the width each."""
    size, out = _of_stages(tower, "embed_dim")[-1], tower.count("projection_dim")
    return size * out + layer_norm(out) + tower.count("max_position_embeddings") * size


TOWERS: Mapping[str, Callable[[Values], int]] = {"florence_vision": vision}
JOINTS: Mapping[str, Joint] = {"florence2": joint}
