"""Keys that a published file may set otherwise than its class does, each held against the class.

Numbers are parameters of transformers 5.24's class on the meta device for the recorded tiny file
(tests/facts/README.md) with that one key changed: of every key of every counted type that was set
otherwise so, these once gave another count.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from type_records import records

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.reading import read_geometry


def read(model_type: str, **keys: Any) -> ModelGeometry:
    raw = records()[model_type]["full"] | keys
    return read_geometry(parse_config(json.dumps(raw), "config.json", model_type, None))


@pytest.mark.parametrize(
    ("model_type", "key", "value", "parameters"),
    [
        ("afmoe", "attention_bias", True, 594_908),
        ("aria_text", "mlp_bias", True, 1_088_064),
        ("cohere2_moe", "num_shared_experts", 2, 1_116_736),
        ("ernie4_5_moe", "moe_layer_end_index", 1, 298_308),
        ("ernie4_5_moe", "moe_layer_interval", 2, 354_384),
        ("ernie4_5_moe", "use_bias", True, 414_108),
        ("gpt_bigcode", "multi_query", False, 465_536),
        ("helium", "attention_bias", True, 313_408),
        ("hy_v3", "mlp_bias", True, 450_880),
        ("hyperclovax", "use_post_norm", False, 345_152),
        ("jamba", "mamba_conv_bias", False, 676_412),
        ("laguna", "gating", False, 498_908),
        ("laguna", "num_attention_heads_per_layer", [4, 8] * 4, 501_980),
        ("opt", "_remove_final_layer_norm", True, 300_416),
        ("opt", "layer_norm_elementwise_affine", False, 298_368),
        ("sarvam_moe", "attention_bias", True, 451_264),
        ("sarvam_moe", "use_qk_norm", False, 449_344),
        ("solar_open", "attention_bias", True, 463_424),
        ("stablelm", "qk_layernorm", True, 314_240),
        ("stablelm", "use_parallel_residual", True, 312_448),
        ("phimoe", "lm_head_bias", True, 758_400),
    ],
)
def test_a_key_that_is_set_otherwise_counts_as_its_class_counts_it(
    model_type: str, key: str, value: Any, parameters: int
) -> None:
    assert read(model_type, **{key: value}).parameter_count == parameters


@pytest.mark.parametrize(("first", "second", "parameters"), [(4, 8, 1_624_768), (8, 4, 1_748_928)])
def test_experts_that_are_numbered_twice_are_as_the_class_takes_them(
    first: int, second: int, parameters: int
) -> None:
    raw = records()["step3p7"]["full"]
    text = raw["text_config"] | {"moe_num_experts": first, "n_routed_experts": second}
    model = read("step3p7", text_config=text)
    assert (model.parameter_count or 0) - model.tower_parameters == parameters


def test_heads_of_layers_are_as_many_as_layers() -> None:
    with pytest.raises(ConfigError, match="num_attention_heads_per_layer"):
        read("laguna", num_attention_heads_per_layer=[4])
