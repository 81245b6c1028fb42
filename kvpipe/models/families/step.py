"""Step 3.5 and 3.7: window layers with more query heads than the others, experts by a list.

Published files count the prediction layers among layer_types, name the layers with experts
(moe_layers_enum), and say the heads of window layers in a section (attention_other_setting). The
source is transformers' class and the engine's own reading (vllm/model_executor/models/step3p5.py).
"""

from __future__ import annotations

from typing import Any

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.blocks import Block, Experts
from kvpipe.models.families.caches import SLIDING, standard_caches
from kvpipe.models.families.weights import decoder

EXPERTS = "moe_num_experts"
STEP = Block(
    bias="attention_bias",
    qk_norm="head",
    gate="head",
    mlp_bias="mlp_bias",
    experts=Experts(number="n_routed_experts", shared_width="share_expert_dim", first=3),
)


def as_class_reads(config: Config) -> Config:
    """The file under the keys that all families know. Where it numbers its experts twice, its
    class and the engine take moe_num_experts."""
    if config.raw.get(EXPERTS) is not None:
        config = config.having(n_routed_experts=config.raw[EXPERTS])
    return with_heads(with_experts(without_predictions(config)))


def without_predictions(config: Config) -> Config:
    """Lists of one entry a layer, without those of the prediction layers behind them."""
    layers, extra = config.num_layers, config.number("num_nextn_predict_layers")
    lists = {key: config.words(key) for key in ("layer_types", "mlp_layer_types")}
    padded = {key: kinds for key, kinds in lists.items() if kinds and len(kinds) == layers + extra}
    return config.having(**{key: kinds[:layers] for key, kinds in padded.items()})


def with_experts(config: Config) -> Config:
    """moe_layers_enum, "3,4,5" or a list, are the layers with experts."""
    listed = config.get("moe_layers_enum")
    if config.words("mlp_layer_types") is not None or listed is None:
        return config
    if isinstance(listed, str):
        named = [part.strip() for part in listed.split(",") if part.strip()]
        if not all(part.isdecimal() for part in named):
            raise config.wrong("moe_layers_enum", "numbers of layers", listed)
        sparse = set(map(int, named))
    else:
        sparse = set(config.numbers("moe_layers_enum") or ())
    kinds = ["sparse" if i in sparse else "dense" for i in range(config.num_layers)]
    return config.having(mlp_layer_types=kinds)


def with_heads(config: Config) -> Config:
    """Query heads of each window layer, where the file does not already list them by layer."""
    other = Config(config.section("attention_other_setting").raw)
    heads = config.number("num_sliding_attention_heads") or other.number("num_attention_heads")
    if not heads or config.section("per_layer_config").raw:
        return config
    own: dict[str, Any] = {
        str(layer): {"num_attention_heads": heads}
        for layer, kind in enumerate(config.words("layer_types") or ())
        if kind == SLIDING
    }
    return config.having(per_layer_config=own)


def step_caches(config: Config) -> list[CacheGeometry]:
    return standard_caches(as_class_reads(config))


def step_weights(config: Config) -> list[Weight]:
    return decoder(as_class_reads(config), STEP)


FAMILIES = {"step3p5": Family(caches=step_caches, weights=step_weights)}
