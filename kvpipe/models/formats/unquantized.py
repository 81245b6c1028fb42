"""Every number in one dtype: a quantised checkpoint unpacked, or one of 32 bits halved."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import ModelGeometry
from kvpipe.specs.base import DTYPE_BYTES


class Unquantized:
    class Options(BaseModel):
        """dtype: of every number; what a run computes in is model.dtype."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        name: str
        dtype: Literal["float16", "bfloat16", "float32"]

    def __init__(self, options: Options) -> None:
        self.options = options

    def stored(self, model: ModelGeometry) -> ModelGeometry:
        """As published where it is not quantised and as wide already."""
        width = DTYPE_BYTES[self.options.dtype]
        plain = not model.quantized_with and model.weight_bytes is None
        if plain and width == DTYPE_BYTES[model.file_dtype]:
            return model
        if model.parameter_count is None:
            expected = f"published, since {model.name} does not say how many parameters it has"
            raise ConfigError(Problem("weights", expected, f"'{self.options.dtype}'"))
        return replace(
            model,
            weight_bytes=model.parameter_count * width,
            quantized_with="",
            is_converted=bool(model.quantized_with),
            notes=(
                *model.notes,
                f"weights: every number in {self.options.dtype}, not as published",
            ),
        )


PLUGIN = Unquantized
