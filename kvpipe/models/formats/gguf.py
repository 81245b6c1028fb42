"""As llama.cpp's quantize writes them: a mix of ggml types by tensor and layer.

A mix (Q4_K_M) has a base type for most matrices and a wider one where quality asks for it: the
output, V and down projections of some layers. Norms, routers, biases and convolutions stay in 32
bits. A row that is no multiple of a type's block takes the next type that has smaller blocks.
The rules are those of llama_tensor_get_type (llama.cpp, src/llama-quant.cpp) without an importance
matrix; they know nothing of a publisher's own mixes ("UD-Q4_K_XL").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.models.base import ModelGeometry
from kvpipe.models.formats.base import converted, tensors_of
from kvpipe.models.gguf.types import TYPES
from kvpipe.models.weight import Weight

_BLOCKS = {name: (numbers, size) for name, numbers, size in TYPES.values()}
_SMALLER = {"Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_V = ("v_proj.weight", "attn_v.weight", ".v.weight")
_FUSED = ("qkv_proj.weight", "query_key_value.weight", "Wqkv.weight", "c_attn.weight")
_K = ("k_proj.weight", ".k.weight")
_O = ("o_proj.weight", "out_proj.weight", ".o.weight")
_DOWN = ("down_proj.weight", "fc2.weight", "wo.weight", "dense_4h_to_h.weight", "c_proj.weight")


@dataclass(frozen=True, kw_only=True)
class Mix:
    """base: of most matrices. more: V and down projections of the layers that get more bits.
    first: V of the first four layers, down of the first eighth. fused: one matrix of q, k and v."""

    base: str
    more: str | None = None
    first: str | None = None
    fused: str | None = None


MIXES: Mapping[str, Mix] = MappingProxyType(
    {
        "Q8_0": Mix(base="Q8_0"),
        "Q6_K": Mix(base="Q6_K"),
        "Q5_K_M": Mix(base="Q5_K", more="Q6_K", fused="Q6_K"),
        "Q5_K_S": Mix(base="Q5_K"),
        "Q5_0": Mix(base="Q5_0"),
        "Q4_K_M": Mix(base="Q4_K", more="Q6_K", fused="Q5_K"),
        "Q4_K_S": Mix(base="Q4_K", first="Q5_K"),
        "Q4_0": Mix(base="Q4_0"),
    }
)


class Gguf:
    class Options(BaseModel):
        """mix: as in the name of a file, "Q4_K_M"."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        name: str
        mix: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def stored(self, model: ModelGeometry) -> ModelGeometry:
        mix = MIXES.get(self.options.mix)
        if mix is None:
            got, hint = f"'{self.options.mix}'", did_you_mean(self.options.mix, MIXES)
            raise ConfigError(Problem("weights.mix", "a mix of llama.cpp's quantize", got, hint))
        rules = Rules(mix, model, self.options.mix)
        return converted(model, self.options.mix, rules.num_bytes)


class Rules:
    """The type of each tensor of one model."""

    def __init__(self, mix: Mix, model: ModelGeometry, name: str) -> None:
        self.mix, self.layers = mix, model.num_layers
        weights = tensors_of(model, name)
        self.has_output = any(w.name.startswith("lm_head") for w in weights)
        # Mixtral: V and K cost little beside eight experts. 70B: eight query heads share a V.
        self.has_eight_experts = any(w.linear and w.count == 8 for w in weights)
        kv_heads = {w.parts for w in weights if w.name.endswith(_V)}
        self.is_70b = model.num_layers == 80 and kv_heads == {model.num_attention_heads // 8}

    def num_bytes(self, weight: Weight) -> int:
        numbers, size = _BLOCKS[self.type_of(weight)]
        return weight.count * prod(weight.shape) // numbers * size

    def type_of(self, weight: Weight) -> str:
        if not weight.linear and not (weight.layer is None and len(weight.shape) == 2):
            return "F32"
        wanted = self._wanted(weight)
        while weight.shape[-1] % _BLOCKS[wanted][0] and wanted in _SMALLER:
            wanted = _SMALLER[wanted]
        return "F16" if weight.shape[-1] % _BLOCKS[wanted][0] else wanted

    def _wanted(self, weight: Weight) -> str:
        base, name = self.mix.base, weight.name
        if weight.layer is None:
            is_output = weight.last or not self.has_output
            return "Q6_K" if is_output and base != "Q8_0" else base
        if name.endswith(_FUSED):
            return self.mix.fused or base
        if name.endswith(_V):
            return self._v(weight.layer)
        if name.endswith(_K) and self.has_eight_experts:
            return "Q8_0"
        if name.endswith(_O) and self.has_eight_experts and base == "Q4_K":
            return "Q5_K"
        if name.endswith(_DOWN):
            return self._of_layer(weight.layer, first=self.layers // 8)
        return base

    def _v(self, layer: int) -> str:
        if self.has_eight_experts:
            return "Q8_0"
        wanted = self._of_layer(layer, first=4)
        return "Q5_K" if self.is_70b and wanted == "Q4_K" else wanted

    def _of_layer(self, layer: int, *, first: int) -> str:
        if self.mix.more and _gets_more_bits(layer, self.layers):
            return self.mix.more
        return self.mix.first if self.mix.first and layer < first else self.mix.base


def _gets_more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


PLUGIN = Gguf
