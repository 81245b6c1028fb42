"""Counting parameters of the parts that towers are made of."""

from __future__ import annotations

from kvpipe.models._values import Values, is_whole


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return outputs * (inputs + bias)


def layer_norm(size: int) -> int:
    """A weight and a bias; an RMS norm has the weight alone."""
    return 2 * size


def block(size: int, inner: int) -> int:
    """A layer of a plain vision transformer: q, k, v, o and two matrices with biases, two norms."""
    return 4 * linear(size, size) + linear(size, inner) + linear(inner, size) + 2 * layer_norm(size)


def gated(size: int, inner: int, bias: bool = False) -> int:
    """An MLP whose first matrix is gated by a second."""
    return 2 * linear(size, inner, bias) + linear(inner, size, bias)


def square(inputs: int, outputs: int, bias: bool = False, kernel: int = 3) -> int:
    """A convolution over kernel x kernel pixels."""
    return linear(inputs * kernel**2, outputs, bias)


def ratio(config: Values, key: str, default: float) -> float:
    """A ratio that a class always has."""
    return config.ratio(key, default) or default


def patches(config: Values, size: int, *, bias: bool, frames: bool = False) -> int:
    """A convolution over patches of pixels (and frames)."""
    named = (config.number(key) for key in ("in_channels", "in_chans", "num_channels"))
    channels = next(filter(None, named), 3)
    times = config.count("temporal_patch_size", 2) if frames else 1
    return linear(channels * times * side(config, "patch_size") ** 2, size, bias)


def side(config: Values, key: str) -> int:
    """Pixels: a number, or one for height and one for width, which are equal here."""
    value = config.get(key)
    if isinstance(value, list) and value and is_whole(value[0]) and set(value) == {value[0]}:
        return max(1, value[0])
    return config.count(key)


def places(config: Values) -> int:
    """Patches of an image."""
    return (side(config, "image_size") // side(config, "patch_size")) ** 2
