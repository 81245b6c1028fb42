"""A params.json of Mistral is read as the config.json that says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import open_config
from kvpipe.models.reading import read_geometry

MISTRAL_7B: dict[str, Any] = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
    "n_kv_heads": 8, "norm_eps": 1e-05, "vocab_size": 32768, "rope_theta": 1e6,
}  # fmt: skip
NEMO = MISTRAL_7B | {"dim": 5120, "n_layers": 40, "vocab_size": 131072}
MIXTRAL = MISTRAL_7B | {"vocab_size": 32000, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}
LARGE_3 = MISTRAL_7B | {
    "dim": 7168, "n_layers": 61, "hidden_dim": 16384, "n_heads": 128, "n_kv_heads": 128,
    "vocab_size": 131072, "max_position_embeddings": 294912, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "kv_lora_rank": 512, "v_head_dim": 128,
    "llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1},
    "yarn": {"original_max_position_embeddings": 8192, "factor": 36, "beta": 32, "alpha": 1},
    "moe": {
        "route_every_n": 1, "first_k_dense_replace": 3, "num_experts": 128,
        "num_experts_per_tok": 4, "expert_hidden_dim": 4096, "num_shared_experts": 1,
    },
}  # fmt: skip


def read(folder: Path, **params: Any) -> ModelGeometry:
    (folder / "params.json").write_text(json.dumps(params))
    return read_geometry(open_config(str(folder)))


# Numbers of parameters as published; of Large 3 as its class has them without the tower.
@pytest.mark.parametrize(
    ("params", "count", "rows"),
    [
        (MISTRAL_7B, 7_248_023_552, {"num_kv_heads": 8, "head_size": 128}),
        (MIXTRAL, 46_702_792_704, {"num_kv_heads": 8, "head_size": 128}),
        (NEMO, 12_247_782_400, {"num_kv_heads": 8, "head_size": 128}),
        (NEMO | {"vision_encoder": {"hidden_size": 1024}}, 12_247_782_400,
         {"num_kv_heads": 8, "head_size": 128}),
        (LARGE_3, 673_421_089_792, {"head_size": 576}),
    ],
)  # fmt: skip
def test_a_folder_with_params_json_alone_is_read(
    params: dict[str, Any], count: int, rows: dict[str, int], tmp_path: Path
) -> None:
    model = read(tmp_path, **params)
    assert (model.parameter_count, model.num_layers) == (count, params["n_layers"])
    assert all(cache.fields == rows for cache in model.caches)
    assert model.context_length == params.get("max_position_embeddings", 128_000)


def test_a_config_json_beside_it_is_read_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert read(tmp_path, **NEMO).hidden_size == 4096


def test_windows_in_a_round_are_those_of_the_layers(tmp_path: Path) -> None:
    model = read(tmp_path, **NEMO | {"sliding_window": [None, 1024, 1024, 1024]})
    kinds = [cache.spec for cache in model.caches]
    assert kinds == ["full", "sliding", "sliding", "sliding"] * 10
    assert model.caches[1].fields["sliding_window"] == 1024
    assert {c.spec for c in read(tmp_path, **NEMO | {"sliding_window": 4096}).caches} == {"sliding"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "mamba"}, "model_type"),
        ({"sliding_window": [None, 1024, 2048]}, "sliding_window"),
        ({"sliding_window": []}, "sliding_window"),
        ({"moe": {"num_experts": "8"}}, "num_experts"),
        ({"quantization": {"quant_method": "other"}}, "quant_method"),
        ({"yarn": {"factor": 2}}, "original_max_position_embeddings"),
        ({"n_kv_heads": None, "dim": "x"}, "hidden_size"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_key(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, **NEMO | change)
