"""As a quantiser would write them: `quantization` says what a quantization_config would say.

The matrices of the layers are converted, but for `modules_to_not_convert` (or `ignore`);
embeddings, head, norms and routers stay in the file's dtype.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem
from kvpipe.models._quantization import quantized_bytes
from kvpipe.models._values import Values
from kvpipe.models.base import ModelGeometry
from kvpipe.models.formats.base import converted, tensors_of
from kvpipe.models.weight import Weight
from kvpipe.specs.base import DTYPE_BYTES


class Quantized:
    class Options(BaseModel):
        """label: what notes call it. load_as: the word by which an engine converts a 16-bit
        checkpoint as it loads it; null where a checkpoint must be quantised beforehand."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        name: str
        label: str
        load_as: str | None
        quantization: dict[str, Any]

    def __init__(self, options: Options) -> None:
        self.options = options

    def stored(self, model: ModelGeometry) -> ModelGeometry:
        """As published where the checkpoint is quantised in this way already."""
        options, width = self.options, DTYPE_BYTES[model.file_dtype]
        if model.quantized_with == options.label and model.weight_bytes:
            return model
        words = Values(options.quantization, "quantization.")

        def bytes_of(weight: Weight) -> int:
            num_bytes = quantized_bytes([weight], words, width)
            if num_bytes is None:
                known = "a method whose layout is known (fp8, awq, gptq, mxfp4, modelopt, ...)"
                raise ConfigError(Problem("quant_method", known, f"{words.get('quant_method')!r}"))
            return num_bytes

        tensors_of(model, options.label)
        try:
            return converted(model, options.label, bytes_of, load_as=options.load_as or "")
        except ConfigError as error:
            raise ConfigError([self._named(problem) for problem in error.problems]) from error

    @staticmethod
    def _named(problem: Problem) -> Problem:
        key = problem.key.removeprefix("config.json: ").removeprefix("quantization.")
        return replace(problem, key=f"weights.quantization.{key}", knob="")


PLUGIN = Quantized
