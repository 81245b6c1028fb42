"""The contract of a weight format, and what every conversion says of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import ModelGeometry
from kvpipe.models.weight import Weight
from kvpipe.text.figures import size


@runtime_checkable
class WeightFormat(Protocol):
    """A choice of the group `weights`, set up with its options."""

    def stored(self, model: ModelGeometry) -> ModelGeometry:
        """The model with `weight_bytes` in this format; ConfigError where these are not known."""


BytesOfWeight = Callable[[Weight], int]


def converted(
    model: ModelGeometry, format_name: str, bytes_of: BytesOfWeight, *, load_as: str = ""
) -> ModelGeometry:
    """The model with every tensor stored as `bytes_of` says, and a note of what stays wide."""
    weights = tensors_of(model, format_name)
    sizes = [bytes_of(weight) for weight in weights]
    wide = sum(
        num_bytes
        for num_bytes, weight in zip(sizes, weights, strict=True)
        if num_bytes >= 2 * weight.num_parameters
    )
    source = "" if load_as else "; serving them needs a checkpoint of that kind"
    note = f"weights={format_name}: {size(sum(sizes))}, of which {size(wide)} stay wide{source}"
    kept = tuple(text for text in model.notes if not text.startswith(_OF_PUBLISHED))
    return replace(
        model,
        weight_bytes=sum(sizes),
        quantized_with=format_name,
        is_converted=True,
        load_as=load_as,
        notes=(*kept, note),
    )


# Notes of a reader about weights that are another's now.
_OF_PUBLISHED = ("checkpoint quantised with", "how ")


def tensors_of(model: ModelGeometry, format_name: str) -> Sequence[Weight]:
    """Every tensor; ConfigError where only their number is known."""
    weights = model.weights() if model.weights else ()
    if not weights:
        raise ConfigError(
            Problem(
                "weights",
                f"published, since no reader knows the matrices of {model.name}",
                f"'{format_name}'",
                "name its config.json (model=hf model.path=DIR), or set model.weight_bytes",
            )
        )
    return weights
