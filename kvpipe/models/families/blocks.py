"""A decoder layer as one row: what its attention and MLP add to matrices that all of them have.

`Block(qk_norm="head", norms=4)` is a function (config, layer) -> weights for `decoder`. Words that
name a flag of the file ("attention_bias") hold where the file, or its class, says true.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.models.families.base import Config, Weight, unreadable
from kvpipe.models.families.experts import is_sparse, routed
from kvpipe.models.families.weights import attention, linear, mlp, norm, norms, vector

YES, NO = "yes", "no"


def holds(config: Config, word: str) -> bool:
    """yes, no, or the flag of that name; "!name" is its opposite."""
    if word.startswith("!"):
        return not holds(config, word[1:])
    return word == YES or (word != NO and config.flag(word))


@dataclass(frozen=True, kw_only=True)
class Experts:
    """number, width: keys of the experts and of one's size. shared: the key of how many experts
    all tokens visit, or of their width where that has a key of its own (`shared_width`).

    shared_bias: of the expert that all tokens visit, as a Block's.

    first: the key or number of dense layers in front, where the file has no mlp_layer_types. last:
    the key of the last layer with experts, -1 for the model's. every: that of how many layers share
    one with experts.
    steps: Qwen's decoder_sparse_step and mlp_only_layers say it instead.
    """

    number: str = "num_experts"
    width: str = "moe_intermediate_size"
    shared: str = ""
    shared_width: str = ""
    shared_gate: bool = False
    shared_bias: str = NO
    first: str | int = 0
    last: str = ""
    every: str = ""
    steps: bool = False
    bias: int = 0  # numbers an expert beside its weights: the correction of the router
    router: str = "mlp.gate"

    def has(self, config: Config, layer: int) -> bool:
        if self.steps:
            return is_sparse(config, layer)
        kinds = config.words("mlp_layer_types")
        if kinds is not None:
            if len(kinds) != config.num_layers:
                raise unreadable("mlp_layer_types", f"{config.num_layers} entries", len(kinds))
            return kinds[layer] != "dense"
        first = self.first if isinstance(self.first, int) else config.number(self.first)
        return layer >= first and self._is_reached(config, layer)

    def _is_reached(self, config: Config, layer: int) -> bool:
        last = config.get(self.last) if self.last else None
        if last not in (None, -1) and layer > config.number(self.last):
            return False
        return not self.every or (layer + 1) % config.count(self.every, 1) == 0

    def weights(self, config: Config, layer: int) -> list[Weight]:
        number, width = config.count(self.number), config.count(self.width)
        found = routed(config, layer, number, width)
        if self.bias:
            found.append(vector(f"{self.router}.bias", number * self.bias, layer=layer))
        shared = self._shared(config, width)
        if shared:
            bias = holds(config, self.shared_bias)
            found += mlp(config, layer, shared, bias=bias, name="mlp.shared_expert")
        if shared and self.shared_gate:
            found += linear(
                "mlp.shared_expert_gate", 1, config.hidden_size, layer=layer, quantized=False
            )
        return found

    def _shared(self, config: Config, width: int) -> int:
        if self.shared_width:
            return config.number(self.shared_width)
        return config.number(self.shared) * width if self.shared else 0


@dataclass(frozen=True, kw_only=True)
class Block:
    """bias of q, k, v; o_bias of o (None: as bias). qk_norm: "head", one weight a number of a head;
    "whole", one a number of all heads. gate: "head" or "whole", of attention's output. norms: of
    hidden_size; post_norms: the flag of two more; one_norm: that of one for both. head_bias: of the
    output projection. sub_norms: of the outputs of attention and MLP before they are projected
    down. sinks: one a head. scalars: numbers a layer beside all that; lambdas: vectors of a
    head."""

    bias: str = NO
    o_bias: str | None = None
    qk_norm: str = ""
    qk_norm_if: str = YES
    qk_norm_bias: bool = False
    gate: str = ""
    norms: int = 2
    post_norms: str = NO
    one_norm: str = NO
    head_bias: str = NO
    norm_bias: bool = False
    gated: bool = True
    mlp_bias: str = NO
    width: str = "intermediate_size"
    experts: Experts | None = None
    sub_norms: bool = False
    sinks: bool = False
    scalars: int = 0
    lambdas: int = 0

    def __call__(self, config: Config, layer: int) -> list[Weight]:
        return [
            *self.attention(config, layer),
            *self.feed_forward(config, layer),
            *norms(config, layer, self._count_norms(config), bias=self.norm_bias),
            *self.others(config, layer),
        ]

    def _count_norms(self, config: Config) -> int:
        if holds(config, self.one_norm):
            return 1
        return self.norms + (2 if holds(config, self.post_norms) else 0)

    def others(self, config: Config, layer: int) -> list[Weight]:
        found = [vector(f"scalar.{i}", 1, layer=layer) for i in range(self.scalars)]
        if self.sub_norms:
            found += norm("self_attn.sub_norm", config.hidden_size, layer=layer)
            found += norm("mlp.sub_norm", config.count(self.width), layer=layer)
        if self.sinks:
            found.append(vector("self_attn.sinks", config.num_heads, layer=layer, split=0))
        lambdas = range(self.lambdas)
        return found + [vector(f"lambda.{i}", config.head_size, layer=layer) for i in lambdas]

    def attention(self, config: Config, layer: int) -> list[Weight]:
        bias = holds(config, self.bias)
        o_bias = bias if self.o_bias is None else holds(config, self.o_bias)
        heads, size = config.num_heads, config.head_size
        found = attention(config, layer, bias=bias, o_bias=o_bias)
        if self.qk_norm and holds(config, self.qk_norm_if):
            wide = self.qk_norm == "whole"
            for part, count in (("q", heads), ("k", config.num_kv_heads)):
                width = count * size if wide else size
                name = f"self_attn.{part}_norm"
                found += norm(name, width, layer=layer, bias=self.qk_norm_bias)
        if self.gate:
            rows = heads * size if self.gate == "whole" else heads
            found += linear(
                "self_attn.gate_proj", rows, config.hidden_size, layer=layer, split=0, parts=heads
            )
        return found

    def feed_forward(self, config: Config, layer: int) -> list[Weight]:
        if self.experts is not None and self.experts.has(config, layer):
            return self.experts.weights(config, layer)
        bias = holds(config, self.mlp_bias)
        return mlp(config, layer, config.count(self.width), gated=self.gated, bias=bias)
