"""DeepSeek-V4: rows that stand for 4 or 128 tokens, and what is in no row yet.

What transformers' own cache held is compared in test_model_types.py, what vLLM's class says that
each layer stores in test_engine_classes.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from type_records import records

from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.reading import read_geometry
from kvpipe.pipeline import execute

WINDOW, SPARSE, HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
WHOLE: dict[str, Any] = {  # as its class fills it: 43 layers, a million tokens
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
}
SMALL = WHOLE | {
    "num_hidden_layers": 5,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "q_lora_rank": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "layer_types": [WINDOW, HEAVY, SPARSE, HEAVY, SPARSE],
}
# What vLLM 0.33's own planner made of the layers of its own class (v1/core/kv_cache_planning.py,
# axes BLHNC): file, length, tokens of a step, memory -> blocks, its concurrency, blocks of groups.
PLANNED = [
    (SMALL, 8192, 8192, 3 * 2**30, 33_689, 9.644718007443458, [64, 64, 64, 256, 8, 4]),
    (WHOLE, 131_072, 8192, 40 * 2**30, 44_676, 11.556130367304707, [64, 64, 256, 8, 4]),
    (WHOLE, 1_048_576, 8192, 77 * 2**30, 86_002, 11.543892617449664, [64, 64, 256, 8, 4]),
]


def read(raw: Any) -> ModelGeometry:
    return read_geometry(parse_config(json.dumps(raw), "config.json", "v4", None))


def planned(folder: Path, raw: Any, *words: str) -> Plan:
    (folder / "config.json").write_text(json.dumps(raw))
    asked = ["model=hf", f"model.path={folder}", "device=h200", "backend=meta"]
    return execute(prepared_request([*asked, "profiling=fixed", *words]).prepared).plan


@pytest.mark.parametrize(
    ("raw", "length", "step", "memory", "blocks", "concurrency", "sizes"), PLANNED
)
def test_the_plan_is_that_of_vllms_own_planner(
    raw: Any, length: int, step: int, memory: int, blocks: int, concurrency: float,
    sizes: list[int], tmp_path: Path,
) -> None:  # fmt: skip
    plan = planned(
        tmp_path, raw, "engine=vllm_0_33", f"scheduler.max_model_len={length}",
        f"scheduler.max_num_batched_tokens={step}", f"cache.kv_cache_memory_bytes={memory}",
    )  # fmt: skip
    assert plan.num_blocks == blocks
    assert plan.printed[0].max_concurrency == concurrency
    assert [group.spec.block_size for group in plan.ranks[0].config.groups] == sizes


def test_slots_hold_at_least_what_the_engines_plan_holds(tmp_path: Path) -> None:
    same = ["cache.kv_cache_memory_bytes=1GiB", "scheduler.max_model_len=4096"]
    ours = planned(tmp_path, SMALL, "engine=kvpipe", *same).capacity
    theirs = planned(tmp_path, SMALL, "engine=vllm_0_33", *same).capacity
    assert ours is not None and theirs is not None
    assert ours.requests_steady >= theirs.requests_steady


def test_rates_of_layers_say_what_their_kinds_say_and_prediction_layers_are_left_out() -> None:
    rates = {key: value for key, value in SMALL.items() if key != "layer_types"}
    assert read(rates | {"compress_ratios": [0, 128, 4, 128, 4, 0]}).caches == read(SMALL).caches


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"layer_types": [WINDOW] * 4}, "layer_types"),
        ({"layer_types": ["full_attention"] * 5}, "layer_types"),
        ({"layer_types": None, "compress_ratios": [0, 8, 4, 128, 4]}, "compress_ratios"),
        ({"compress_rates": {SPARSE: 8}}, f"compress_rates.{SPARSE}"),
        ({"compress_rate_hca": 64}, f"compress_rates.{HEAVY}"),
    ],
)
def test_rates_and_kinds_that_no_engine_is_known_to_store_are_refused(
    changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(SMALL | changes)
    assert any(key in problem.key for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["engine=vllm_0_17"], "engine.name"),
        (["engine=vllm_0_33", "cache.cache_dtype=bfloat16"], "cache.cache_dtype"),
        (["engine=vllm", "engine.version=0.32.0"], "engine.name"),
        (["cache.block_size=64"], "cache.block_size"),
        (["engine=vllm_0_33", "cache.block_size=512"], "cache.block_size"),
        (["engine=sglang"], "engine.name"),
    ],
)
def test_what_cannot_store_such_rows_is_refused_by_the_key_that_says_so(
    words: list[str], key: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, SMALL, "cache.kv_cache_memory_bytes=1GiB", *words)
    assert {problem.key for problem in caught.value.problems} == {key}


def test_plain_rows_are_planned_in_their_own_pages(tmp_path: Path) -> None:
    """64 rows of 512 numbers of bfloat16, for 64 or 256 tokens; 2 rows for 256; and states."""
    plan = planned(
        tmp_path, SMALL, "cache.cache_dtype=bfloat16", "cache.kv_cache_memory_bytes=1GiB",
        "scheduler.max_model_len=4096",
    )  # fmt: skip
    groups = plan.ranks[0].config.groups
    specs = {g.layer_spec(name) for g in groups for name in g.layer_names}
    pages = {spec.real_page_size_bytes * 256 // spec.block_size for spec in specs}
    row = 512 * 2
    assert {4 * 64 * row, 64 * row, 2 * row} < pages


def test_a_prediction_layer_keeps_a_window_alone(tmp_path: Path) -> None:
    raw, memory = SMALL | {"num_nextn_predict_layers": 2}, "cache.kv_cache_memory_bytes=1GiB"
    plan = planned(tmp_path, raw, memory, "model.draft=mtp")
    names = [name for group in plan.ranks[0].config.groups for name in group.layer_names]
    drafts = {name for name in names if int(name.split(".")[2]) >= 5}
    assert drafts == {f"model.layers.{layer}.attn.swa_cache" for layer in (5, 6)}


def test_experts_of_four_bits_are_counted_beside_eight() -> None:
    record = records()["deepseek_v4"]["sparse"] | {"torch_dtype": "bfloat16"}
    eight = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    quantized = [
        read(record | {"quantization_config": eight, "expert_dtype": dtype}).weight_bytes or 0
        for dtype in ("fp8", "fp4")
    ]
    experts = 8 * 4 * 3 * 32 * 64  # layers, experts, matrices of 32 x 64
    fewer = experts - experts * 17 // 32 + 8 * 4 * 3 * 4  # 4 bits, a byte for 32; no float32 scale
    others = (quantized[0] - quantized[1] - fewer) / 3  # scales of one byte, where four were
    assert others > 0 and others == int(others)
    by_default = read(record | {"quantization_config": eight}).weight_bytes
    assert by_default == quantized[1]
