"""A model as kvpipe needs it: geometry only. No torch, no weights.

A model layer owns 0..n caches: an MLP none, a hybrid layer K/V and a state, an encoder-decoder
layer self and cross attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from kvpipe.models.weight import Ranks, Weight
from kvpipe.specs.base import DTYPE_BYTES

# Who share a stage's weights, its layers, whether it is the first, the last -> numbers a rank has.
RankParameters = Callable[[Ranks, range, bool, bool], int]

MAX_LAYERS = 10_000  # of one model: each layer is an entry of the plan, and a mistyped count is not


@runtime_checkable
class ModelReader(Protocol):
    """What a model plugin makes of its `Options`."""

    def read(self) -> ModelGeometry:
        """ConfigError with every problem of the model's files."""
        ...


@dataclass(frozen=True, kw_only=True)
class CacheGeometry:
    """One cache of one layer: a registered spec kind and the numbers it asks for.

    name: full layer name ("model.layers.3.self_attn.attn"). shares_with: name of the cache that is
    read instead, for KV sharing. layer: index of the model layer, for pipeline stages. since: what
    vLLM reads otherwise than the file from a release on, that release -> fields. stored_otherwise:
    how vLLM keeps it, where that is not planned here.
    """

    name: str
    layer: int
    spec: str
    fields: Mapping[str, Any]
    shares_with: str | None = None
    since: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stored_otherwise: str = ""

    def whole(self, name: str, default: int) -> int:
        """A field that is a whole number from 1 on; the default for every other value, which the
        spec refuses by name."""
        value = self.fields.get(name, default)
        return value if isinstance(value, int) and value > 0 else default


@dataclass(frozen=True, kw_only=True)
class ModelGeometry:
    """file_dtype: how the checkpoint is stored. context_length: tokens the model was made for;
    context_since: what vLLM takes for it from a release on, that release -> tokens.
    parameter_count: of the whole model, with its source; None where unknown. tower_parameters: of
    these, those of towers beside the part that generates, as far as they are counted.
    encoder_tokens: encoder output tokens one request attends to (0: no cross attention).
    weight_bytes: exact bytes of the weights in the served dtype where a reader knows them.
    experts_per_token, expert_size: of a mixture of experts (0: none): experts that run for a token
    and the intermediate size of one. rank_parameters: what one rank holds, exactly, where a reader
    knows every weight: (ranks, layers of the stage, first stage?, last stage?) -> parameters.
    quantized_with: how its weights are quantised ("" where they are not). is_converted: they are
    not as published; load_as: what tells an engine to convert them as it loads ("": nothing does).
    weights: every tensor, where a reader knows them: asked only by who needs them one by one.
    is_formula: a part of the count follows from what such drafts usually have, and was held against
    no header."""

    name: str
    file_dtype: str
    context_length: int
    num_layers: int
    caches: tuple[CacheGeometry, ...]
    architectures: tuple[str, ...] = ()  # the classes that the file names, as engines look them up
    hidden_size: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    num_attention_heads: int = 0
    parameter_count: int | None = None
    tower_parameters: int = 0
    weight_bytes: int | None = None
    quantized_with: str = ""
    load_as: str = ""
    is_converted: bool = False
    encoder_tokens: int = 0
    kv_dtype: str | None = None  # of the KV cache, where the checkpoint declares one
    has_kv_scheme: bool = False  # ... in the words of compressed-tensors
    adapter_bytes: int = 0  # of a LoRA that lies beside the model, as stored
    context_since: Mapping[str, int] = field(default_factory=dict)
    max_loras: int = 0  # such adapters on the device at once
    is_formula: bool = False
    num_draft_layers: int = 0  # the last layers, of a model that drafts tokens for this one
    experts_per_token: int = 0
    expert_size: int = 0
    conv_dtype: str | None = None  # the config file's own state dtypes, where it names them
    ssm_dtype: str | None = None
    state_chunk_size: int | None = None  # tokens a state kernel takes at once, where the file says
    source: str = ""
    notes: tuple[str, ...] = ()
    rank_parameters: RankParameters | None = field(default=None, compare=False, repr=False)
    weights: Callable[[], Sequence[Weight]] | None = field(default=None, compare=False, repr=False)

    def bytes_of_weights(self, served_dtype: str) -> int:
        """Of the whole model as it is served; 0 where nobody says how many parameters it has."""
        return self.weight_bytes or (self.parameter_count or 0) * DTYPE_BYTES[served_dtype]


def architectures_of(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes that a config.json names; none where it lists no text."""
    names = raw.get("architectures")
    return tuple(n for n in names if isinstance(n, str)) if isinstance(names, list | tuple) else ()
