"""Drafts of every published kind: what they store, and what drafted tokens add to states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.draft_files import read_draft
from kvpipe.models.hf import PLUGIN
from kvpipe.specs.base import SpecContext
from kvpipe.specs.mamba import MambaSpec

TARGET = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
LAYER = TARGET | {"num_hidden_layers": 1}


def with_draft(folder: Path, draft: dict[str, Any] | str, **changes: Any) -> ModelGeometry:
    (folder / "target").mkdir(exist_ok=True)
    (folder / "target" / "config.json").write_text(json.dumps(TARGET | changes))
    place = draft
    if not isinstance(draft, str):
        (folder / "draft").mkdir(exist_ok=True)
        (folder / "draft" / "config.json").write_text(json.dumps(draft))
        place = str(folder / "draft")
    options = {"reader": "hf", "dtype": "auto", "repo": None, "probe": False, "draft": place}
    return PLUGIN(PLUGIN.Options(path=str(folder / "target"), **options)).read()


KINDS = {
    "eagle": LAYER | {"model_type": "eagle", "architectures": ["EagleModel"]},
    "eagle nested": {"model_type": "eagle", "model": LAYER},
    "eagle by class": LAYER | {"architectures": ["EagleLlamaForCausalLM"]},
    "eagle3": LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 100},
    "speculators": {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": LAYER,
        "draft_vocab_size": 100,
    },
    "a small model": LAYER,
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_drafts_with_keys_and_values_of_its_own(kind: str, tmp_path: Path) -> None:
    model = with_draft(tmp_path, KINDS[kind])
    assert (model.num_layers, model.num_draft_layers) == (5, 1)
    assert [c.fields for c in model.caches] == [{"num_kv_heads": 2, "head_size": 64}] * 5


def test_eagle_3_brings_no_embedding_and_a_head_of_fewer_words(tmp_path: Path) -> None:
    alone = with_draft(tmp_path, KINDS["a small model"]).parameter_count
    eagle = with_draft(tmp_path, KINDS["eagle3"]).parameter_count
    assert alone is not None and eagle is not None
    embedding_and_head, norm = 2 * 1000 * 256, 256
    wider, projection, head = (256 + 2 * 128) * 256, 3 * 256 * 256, 100 * 256
    assert eagle - alone == wider + projection + head - embedding_and_head - norm


@pytest.mark.parametrize(
    "draft",
    [
        {"model_type": "medusa", "hidden_size": 256, "num_heads": 4, "vocab_size": 1000},
        {"architectures": ["MedusaModel"], "medusa_num_heads": 4},
        {"model_type": "mlp_speculator", "n_predict": 3, "inner_dim": 256, "vocab_size": 1000},
        {"architectures": ["MLPSpeculatorPreTrainedModel"], "n_predict": 3},
    ],
)
def test_heads_and_mlps_draft_without_a_cache(draft: dict[str, Any], tmp_path: Path) -> None:
    model = with_draft(tmp_path, draft)
    assert (model.num_layers, len(model.caches)) == (4, 4)
    assert any("stores no K/V" in note or "drafts with" in note for note in model.notes)


@pytest.mark.parametrize(
    ("draft", "parameters"),
    [
        (
            {"model_type": "medusa", "hidden_size": 256, "num_heads": 4, "vocab_size": 1000},
            4 * (256 * 256 + 1000 * 256),
        ),
        (
            {"model_type": "mlp_speculator", "n_predict": 3, "inner_dim": 256, "emb_dim": 512,
             "vocab_size": 1000},
            3 * (1000 * 256 + 1000 * 256 + 2 * 256) + 512 * 256 + 2 * 256 * 256,
        ),
        (
            {"model_type": "mlp_speculator", "n_predict": 3, "inner_dim": 256, "emb_dim": 512,
             "vocab_size": 1000, "tie_weights": True},
            1000 * 256 + 1000 * 256 + 2 * 256 + 512 * 256 + 256 * 256,
        ),
    ],
)  # fmt: skip
def test_what_a_draft_without_a_cache_weighs_follows_from_its_file_and_is_no_exact_figure(
    draft: dict[str, Any], parameters: int, tmp_path: Path
) -> None:
    path = tmp_path / "draft"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(draft))
    file = parse_config(path / "config.json", "config.json", "draft", path)
    model = read_draft(file)
    assert (model.parameter_count, model.is_formula) == (parameters, True)


def test_a_prediction_layer_is_counted_with_its_weights(tmp_path: Path) -> None:
    plain = with_draft(tmp_path, KINDS["a small model"]).parameter_count
    model = with_draft(tmp_path, "mtp", num_nextn_predict_layers=1)
    assert (model.num_layers, model.num_draft_layers) == (5, 1)
    layer = 2 * (256 + 128) * 256 + 3 * 512 * 256 + 2 * 256
    more = layer + 2 * 256**2 + 3 * 256
    own = plain - (layer + 2 * 1000 * 256 + 256) if plain else 0
    assert model.parameter_count == own + more
    assert any(f"{more:,} parameters" in note for note in model.notes)
    assert model.is_formula and not with_draft(tmp_path, KINDS["a small model"]).is_formula


def test_qwen3_next_has_a_prediction_layer_although_its_file_has_no_key(tmp_path: Path) -> None:
    model = with_draft(tmp_path, "mtp", model_type="qwen3_next", num_hidden_layers=6)
    (draft,) = [cache for cache in model.caches if cache.layer == 6]
    assert draft.spec == "full"


def test_a_model_without_prediction_layers_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a model with prediction layers"):
        with_draft(tmp_path, "mtp")


def context(tokens: int) -> SpecContext:
    return SpecContext(
        block_size=16,
        dtype="bfloat16",
        cache_dtype="auto",
        model_dtype="bfloat16",
        conv_dtype="bfloat16",
        ssm_dtype="float32",
        max_model_len=4096,
        num_speculative_blocks=tokens,
    )


@pytest.mark.parametrize(
    ("kind", "columns"), [("gdn_attention", 6), ("mamba2", 6), ("short_conv", 6), ("mamba1", 3)]
)
def test_drafted_tokens_widen_every_convolution_but_mamba_1s(kind: str, columns: int) -> None:
    shapes = {"conv": [8192, 3], "ssm": [32, 128, 128]}
    states = [{"name": name, "shape": shape} for name, shape in shapes.items()]
    spec = MambaSpec.from_geometry({"states": states, "mamba_type": kind}, context(3))
    assert spec.states[0].shape == (8192, columns)
    assert spec.page_size_bytes == 8192 * columns * 2 + 32 * 128 * 128 * 4
