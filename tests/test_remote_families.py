"""Types whose classes come with their checkpoints are read from their published keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from type_records import differences, records

from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.reading import read_geometry

COMMON = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def read(model_type: str, **keys: Any) -> ModelGeometry:
    raw = COMMON | {"model_type": model_type} | keys
    kept = {key: value for key, value in raw.items() if value is not None}
    return read_geometry(parse_config(json.dumps(kept), "config.json", model_type, None))


def heads(model: ModelGeometry) -> list[tuple[int, int]]:
    return [(c.fields["num_kv_heads"], c.fields["head_size"]) for c in model.caches]


CHATGLM = {
    "num_hidden_layers": None, "num_layers": 2, "kv_channels": 32, "ffn_hidden_size": 512,
    "padded_vocab_size": 1000, "seq_length": 4096, "multi_query_attention": True,
    "multi_query_group_num": 2,
}  # fmt: skip


DBRX = {
    "d_model": 256, "n_heads": 8, "n_layers": 2, "attn_config": {"kv_n_heads": 2},
    "ffn_config": {"moe_num_experts": 4, "ffn_hidden_size": 512},
}  # fmt: skip


LIGHTNING = {
    "attn_type_list": [0, 1], "num_key_value_heads": 2, "head_dim": 64, "num_local_experts": 4,
    "num_experts_per_tok": 2, "shared_intermediate_size": 0, "postnorm": True,
}  # fmt: skip
GROUPED = (
    *("Keye", "KeyeVL1_5", "bailing_moe_v2", "deepseek", "dots_ocr", "internlm", "internlm2"),
    *("minicpm", "minicpmo", "molmo", "orion", "phi3_v", "phi4mm", "solar", "telechat"),
)
SEQ2SEQ = {
    "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 8,
    "encoder_attention_heads": 8, "d_model": 256, "decoder_ffn_dim": 512, "encoder_ffn_dim": 512,
}  # fmt: skip
# Model type, its published keys, and the (K/V heads, head size) that they mean for every layer.
PUBLISHED: list[tuple[str, dict[str, Any], tuple[int, int]]] = [
        *((name, {"num_key_value_heads": 2}, (2, 32)) for name in GROUPED),
        ("muse_spark_text", {"num_key_value_heads": 2, "head_dim": 64}, (2, 64)),
        ("baichuan", {"model_max_length": 4096, "max_position_embeddings": None}, (8, 32)),
        ("chatglm", CHATGLM, (2, 32)),
        ("chatglm", CHATGLM | {"multi_query_attention": False}, (8, 32)),
        ("qwen", {"kv_channels": 64, "seq_length": 4096, "no_bias": True}, (8, 64)),
        ("bailing_moe", {"num_key_value_heads": 4, "head_dim": 64}, (4, 64)),
        ("step1", {"num_attention_groups": 4}, (4, 32)),
        ("step3_text", {"num_attention_groups": 1, "head_dim": 256}, (1, 256)),
        ("minicpmv", {"num_key_value_heads": 2, "use_sliding_window": False}, (2, 32)),
        ("deepseek_v2", {"use_mla": False, "num_key_value_heads": 8}, (8, 32)),
        ("dbrx", DBRX, (2, 32)),
        *((name, LIGHTNING | {"attn_type_list": [1, 1]}, (2, 64)) for name in
          ("minimax_text_01", "minimax_m1")),
]  # fmt: skip
SEARCHED = "nemotron-nas"  # has a test of its own


@pytest.mark.parametrize(("model_type", "keys", "stored"), PUBLISHED)
def test_heads_are_those_of_the_published_keys(
    model_type: str, keys: dict[str, Any], stored: tuple[int, int]
) -> None:
    assert heads(read(model_type, **keys)) == [stored, stored]


def test_florence_is_a_decoder_with_the_image_tokens_beside_it() -> None:
    model = read("florence2_text", **SEQ2SEQ)
    kinds = [(cache.layer, cache.spec) for cache in model.caches]
    assert {kind for _, kind in kinds} == {"full", "cross"} and len(kinds) == 4


def test_a_searched_model_says_the_heads_of_every_layer_or_that_it_has_none() -> None:
    ffn = {"ffn_mult": 3.0}
    blocks = [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}]
    blocks = [block | {"ffn": ffn} for block in blocks]
    model = read("nemotron-nas", block_configs=blocks)
    assert [(c.layer, c.fields["num_kv_heads"]) for c in model.caches] == [(0, 2)]
    with pytest.raises(ConfigError, match="n_heads_in_group"):
        read("nemotron-nas", block_configs=[{"attention": {"n_heads_in_group": 3}}, {}])
    with pytest.raises(ConfigError, match="2 blocks"):
        read("nemotron-nas", block_configs=[{}])


def test_a_flat_file_of_a_model_of_parts_is_its_text_part() -> None:
    flat = read("qwen2_5_vl", num_key_value_heads=2, use_sliding_window=False)
    nested = read("qwen2_5_vl", text_config=COMMON | {"num_key_value_heads": 2})
    assert heads(flat) == heads(nested) == [(2, 32), (2, 32)]
    assert any("other towers are not counted" in note for note in flat.notes)


def test_gemma_4_has_wider_heads_in_full_layers_and_shares_the_last_ones() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    model = read(
        "gemma4_text", layer_types=types, num_hidden_layers=4, head_dim=64, num_key_value_heads=2,
        global_head_dim=128, num_kv_shared_layers=2, sliding_window=512,
    )  # fmt: skip
    assert heads(model) == [(2, 64), (2, 128)] * 2
    assert [c.shares_with is not None for c in model.caches] == [False, False, True, True]


def test_kimi_linear_counts_its_layers_from_one() -> None:
    own = {"full_attn_layers": [2], "kda_layers": [1], "head_dim": 32, "num_heads": 8,
           "short_conv_kernel_size": 4}  # fmt: skip
    model = read("kimi_linear", linear_attn_config=own, kv_lora_rank=64, qk_rope_head_dim=16)
    assert [c.spec for c in model.caches] == ["mamba", "mla"]
    assert model.ssm_dtype == "float32"
    assert model.caches[0].fields["states"][0]["shape"] == [3 * 8 * 32, 3]


STEP3 = {
    "max_position_embeddings": None, "num_attention_groups": 1, "head_dim": 256,
    "max_seq_len": 65536, "max_position_embedding": 32768,
}  # fmt: skip


def test_step_3_says_its_length_under_names_of_its_own() -> None:
    assert read("step3_text", **STEP3).context_length == 65536  # the one that engines take
    alone = read("step3_text", **STEP3 | {"max_seq_len": None})
    assert alone.context_length == 32768
    nested = read("step3_vl", text_config=COMMON | STEP3 | {"max_position_embeddings": 65536})
    assert heads(nested) == [(1, 256)] * 2 and nested.context_length == 65536


@pytest.mark.parametrize("model_type", ["minimax_text_01", "minimax_m1"])
def test_minimax_01_is_what_transformers_caches_of_the_model_under_its_own_keys(
    model_type: str,
) -> None:
    record = records()["minimax"]
    kinds = record["full"]["layer_types"]
    dropped = ("layer_types", "model_type", "architectures")
    published = {key: value for key, value in record["full"].items() if key not in dropped}
    published["head_dim"] = published["hidden_size"] // published["num_attention_heads"]
    published["attn_type_list"] = [int(kind == "full_attention") for kind in kinds]
    model = read(model_type, **published)
    assert set(published["attn_type_list"]) == {0, 1}
    assert not differences(model, record)
    assert model.parameter_count == sum(record["parameters"].values())


def test_a_linear_layer_of_minimax_01_keeps_a_square_for_every_query_head() -> None:
    model = read("minimax_text_01", **LIGHTNING)
    assert [cache.spec for cache in model.caches] == ["mamba", "full"]
    assert model.caches[0].fields["states"] == [{"name": "ssm", "shape": [8, 64, 64]}]
    assert model.caches[1].fields == {"num_kv_heads": 2, "head_size": 64}
    assert model.parameter_count is not None and not model.tower_parameters


@pytest.mark.parametrize(
    ("model_type", "keys", "said"),
    [
        *(("minimax_m1", LIGHTNING | {key: None}, key) for key in
          ("attn_type_list", "num_key_value_heads", "head_dim", "num_local_experts")),
        ("minimax_m1", LIGHTNING | {"attn_type_list": [0, 2]}, "attn_type_list"),
        ("minimax_text_01", LIGHTNING | {"attn_type_list": [1]}, "attn_type_list"),
        ("minimax_text_01", LIGHTNING | {"shared_intermediate_size": 8}, "shared_intermediate"),
        ("minimax_text_01", LIGHTNING | {"num_local_experts": 1}, "num_local_experts"),
        ("step3_text", STEP3 | {"max_seq_len": None, "max_position_embedding": None},
         "max_seq_len"),
        ("chatglm", {}, "kv_channels"),
        ("step1", {}, "num_attention_groups"),
        ("beam", {"layer_types": ["full_attention"]}, "2 entries"),
        ("minimax", {"attn_type_list": [1, 2]}, "attn_type_list"),
        ("minimax_m2", {"attn_type_list": [1, 0]}, "attn_type_list"),
        ("hy_v4", {"indexer_types": ["some", "full"]}, "indexer_types"),
        ("mistral_large4_text", {"kv_source_layers": [1, 1]}, "kv_source_layers"),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [9], "kda_layers": [1]}},
         "linear_attn_config.full_attn_layers"),
        ("lfm2_moe", {}, "layer_types"),
        ("recurrent_gemma", {"block_types": ["other"]}, "block_types"),
        ("qwen3", {"num_key_value_heads": 3}, "divides 8 heads"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error_that_names_its_key(
    model_type: str, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(model_type, **keys)


# --- what newer releases serve no longer ---------------------------------------------------------
@pytest.mark.parametrize(
    ("release", "is_served"), [("0.17.0", True), ("0.23.0", True), ("0.24.0", False), ("", True)]
)
def test_a_release_that_dropped_an_architecture_is_refused(
    release: str, is_served: bool, tmp_path: Path
) -> None:
    raw = COMMON | LIGHTNING | {"model_type": "minimax_text_01"}
    raw |= {"architectures": ["MiniMaxText01ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    words = ["model=hf", f"model.path={tmp_path}", "device=h100_80gb"]
    words += ["engine=vllm", f"engine.version={release}"] if release else []
    if is_served:
        prepared_request(words)
        return
    with pytest.raises(ConfigError, match="serves MiniMaxText01ForCausalLM, as vLLM up to 0.23.0"):
        prepared_request(words)


# --- weights, by the sizes of published files and the numbers published with them ----------------
SEVEN_B = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
BAICHUAN2_7B = SEVEN_B | {"intermediate_size": 11008, "vocab_size": 125696}
QWEN_7B = SEVEN_B | {
    "intermediate_size": 22016, "kv_channels": 128, "no_bias": True, "vocab_size": 151936,
    "seq_length": 8192, "max_position_embeddings": None,
}  # fmt: skip
CHATGLM3_6B = CHATGLM | {
    "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 28, "kv_channels": 128,
    "ffn_hidden_size": 13696, "padded_vocab_size": 65024, "seq_length": 8192,
    "add_qkv_bias": True, "add_bias_linear": False,
}  # fmt: skip
GLM4_9B = CHATGLM3_6B | {"num_layers": 40, "padded_vocab_size": 151552}
MINICPM_2B = {
    "hidden_size": 2304, "num_attention_heads": 36, "num_key_value_heads": 36,
    "num_hidden_layers": 40, "intermediate_size": 5760, "vocab_size": 122753,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "keys", "parameters"),
    [
        ("baichuan", BAICHUAN2_7B, 7_505_973_248),
        ("qwen", QWEN_7B, 7_721_324_544),
        ("chatglm", CHATGLM3_6B, 6_243_584_000),
        ("chatglm", GLM4_9B, 9_399_951_360),
        ("minicpm", MINICPM_2B, 2_724_880_896),
    ],
)
def test_parameters_are_those_that_were_published(
    model_type: str, keys: dict[str, Any], parameters: int
) -> None:
    model = read(model_type, **keys)
    assert model.parameter_count == parameters
    assert not any("towers" in note for note in model.notes)


def test_a_described_tower_that_is_not_counted_is_told() -> None:
    """GLM-4V-9B is a chatglm with a vision_config."""
    model = read("chatglm", **CHATGLM3_6B, vision_config={"hidden_size": 1792})
    assert any("other towers are not counted" in note for note in model.notes)


def test_a_searched_layer_has_the_weights_of_what_it_keeps() -> None:
    """By hand: hidden 256, 8 heads of 32; a layer whole, one of a matrix each, one without."""
    whole = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 3.0}}
    one = {"replace_with_linear": True, "n_heads_in_group": None, "ffn_mult": None}
    blocks = [
        whole,
        {"attention": one, "ffn": one},
        {"attention": {"no_op": True}, "ffn": whole["ffn"]},
    ]
    model = read("nemotron-nas", block_configs=blocks, num_hidden_layers=3)
    attention = 256 * 256 * 2 + 2 * 256 * 2 * 32
    feed_forward = 3 * 256 * 512  # 2 * 3 * 256 / 3
    norms = (2 + 2 + 1 + 1) * 256
    ends = 2 * 1000 * 256
    assert model.parameter_count == attention + 2 * feed_forward + 2 * 256 * 256 + norms + ends
