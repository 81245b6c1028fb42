"""How far the probe reaches: files as transformers writes them, towers, states outside of caches,
quantised weights; and what it cannot place it names, never as "no cache"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_equality import tiers
from tiny_models import config_of
from tiny_odd_models import ODD, QWEN_VISION

from kvpipe.errors import ConfigError
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import ConfigFile, parse_config
from kvpipe.models.probe.as_engine import probe
from kvpipe.models.reading import read_geometry

ROOT = Path(__file__).parents[2]


def file_of(raw: dict[str, Any]) -> ConfigFile:
    return parse_config(json.dumps(raw), "config.json", str(raw["model_type"]), None)


def written(config: Any) -> dict[str, Any]:
    """The file that `save_pretrained` writes, with every key."""
    return json.loads(config.to_json_string(use_diff=False))


def odd_config(name: str) -> Any:
    import transformers

    return getattr(transformers, ODD[name][0])(**ODD[name][2])


def kinds(model: ModelGeometry) -> list[tuple[int, str]]:
    return [(cache.layer, cache.spec) for cache in model.caches]


# Of the published Qwen2.5-VL-7B: text keys lie flat beside the vision tower's.
QWEN: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 128000, "max_window_layers": 28, "use_sliding_window": False,
    "sliding_window": 32768, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
        "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31], "temporal_patch_size": 2},
}  # fmt: skip


@pytest.mark.full
def test_qwen2_5_vl_7b_has_its_cache_and_all_its_parameters() -> None:
    import transformers

    nested = written(transformers.Qwen2_5_VLConfig(**QWEN))
    assert "num_hidden_layers" not in nested
    for raw in (QWEN, nested):
        model = probe(file_of(raw))
        assert kinds(model) == [(i, "full") for i in range(28)]
        assert dict(model.caches[0].fields) == {"num_kv_heads": 4, "head_size": 128}
        assert model.parameter_count == 8_292_166_656
        assert "676,550,144 of the parameters are of towers" in model.notes[0]


def test_a_flat_file_and_a_nested_one_are_the_same_model() -> None:
    import transformers

    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vision_config": QWEN_VISION,
             "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}  # fmt: skip
    flat = {**QWEN, **small}
    nested = written(transformers.Qwen2_5_VLConfig(**flat))
    one, other = (probe(file_of(raw)) for raw in (flat, nested))
    assert kinds(one) == kinds(other) == [(0, "full"), (1, "full")]
    assert one.parameter_count == other.parameter_count
    assert "of towers beside the text part" in one.notes[0]


@pytest.mark.parametrize(
    "family", tiers(("bamba", "mamba2", "nemotron_h", "falcon_h1"), ("bamba",))
)
def test_what_transformers_wrote_itself_is_read(family: str) -> None:
    """Infinity is {"__float__": "Infinity"} in its files."""
    raw = written(config_of(family))
    assert '"__float__": "Infinity"' in json.dumps(raw)
    assert any(cache.spec == "mamba" for cache in probe(file_of(raw)).caches)


def test_float32_states_are_the_files_word() -> None:
    raw = {**written(config_of("bamba")), "mamba_ssm_dtype": "float32", "dtype": "bfloat16"}
    assert probe(file_of(raw)).ssm_dtype == "float32"
    assert read_geometry(file_of(raw)).ssm_dtype == "float32"


def test_states_that_a_module_keeps_are_planned_beside_the_windows() -> None:
    model = probe(file_of(written(odd_config("recurrent_gemma"))))
    assert kinds(model) == [(0, "mamba"), (1, "mamba"), (2, "sliding")]
    assert model.caches[0].fields["states"] == [
        {"name": "conv1d_state", "shape": [32, 3]},
        {"name": "recurrent_states", "shape": [32]},
    ]


@pytest.mark.full
def test_an_encoder_and_a_decoder_that_were_put_together_have_cross_attention() -> None:
    import transformers

    sizes = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        vocab_size=97,
    )  # fmt: skip
    encoder, decoder = (transformers.BertConfig(**sizes) for _ in range(2))
    whole = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    assert kinds(probe(file_of(written(whole)))) == [
        (0, "full"), (0, "cross"), (1, "full"), (1, "cross"),
    ]  # fmt: skip


def test_fp8_weights_have_the_bytes_that_the_reader_counts() -> None:
    scheme = {"quant_method": "fp8", "weight_block_size": [8, 8], "fmt": "e4m3"}
    raw = {**written(config_of("deepseek_v3")), "quantization_config": scheme, "dtype": "bfloat16"}
    by_probe, by_reader = probe(file_of(raw)), read_geometry(file_of(raw))
    assert by_probe.parameter_count == by_reader.parameter_count
    assert by_probe.weight_bytes == by_reader.weight_bytes
    assert by_probe.weight_bytes < 2 * by_probe.parameter_count


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("xlnet", "a decoder that takes a cache, got XLNetModel"),
        ("mllama", "got nothing in layer 1, 3"),
        ("deepseek_v4", "got the kind 'heavily_compressed_attention'"),
        ("minimax", "MiniMax uses cache of its own"),
    ],
)
def test_what_has_no_place_is_refused_and_named(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        probe(file_of(written(odd_config(name))))
    assert all(problem.key.startswith("model.probe") for problem in caught.value.problems)


def test_fewer_layers_than_the_file_says_and_unknown_tensors_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.cache_utils import DynamicLayer

    from kvpipe.models.probe.build import skeleton
    from kvpipe.models.probe.read import model_needs

    model = skeleton(config_of("llama"))
    del model.model.layers[2]
    model.model.config.num_hidden_layers = 3
    model.config.num_hidden_layers = 4
    with pytest.raises(ConfigError, match="kept of two tokens in every layer, got nothing"):
        model_needs(model)
    before = DynamicLayer.update

    def keeps_more(self: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        self.entropies = [keys]
        return before(self, keys, *args, **kwargs)

    monkeypatch.setattr(DynamicLayer, "update", keeps_more)
    with pytest.raises(ConfigError, match="layer 0 of llama: .* got DynamicLayer with entropies"):
        model_needs(skeleton(config_of("llama")))


def test_latent_rows_that_an_engine_expands_are_counted_expanded() -> None:
    """vLLM's MiniCPM3 caches plain K and V of 4 heads of 8 + 8, transformers a latent row."""
    import transformers

    config = transformers.MiniCPM3Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, kv_lora_rank=16,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16, qk_nope_head_dim=8,
        qk_rope_head_dim=8, v_head_dim=8, pad_token_id=0,
    )  # fmt: skip
    (cache, _) = probe(file_of(written(config))).caches
    assert (cache.spec, dict(cache.fields)) == ("full", {"num_kv_heads": 4, "head_size": 16})


@pytest.mark.nightly
def test_no_type_that_generates_is_said_to_keep_no_cache() -> None:
    """All 300 default configs, each read or refused by name."""
    wrong = [name for name in sorted(generating_types()) if _is_wrong(name)]
    assert wrong == []


def generating_types() -> set[str]:
    from transformers.models.auto import modeling_auto as auto

    kinds = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
    found = {name for k in kinds for name in getattr(auto, f"MODEL_FOR_{k}_MAPPING_NAMES")}
    return found - set(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def _is_wrong(model_type: str) -> bool:
    from transformers import CONFIG_MAPPING

    try:
        raw = {**written(CONFIG_MAPPING[model_type]()), "model_type": model_type}
    except Exception:  # a class without a default
        return False
    try:
        specs = {cache.spec for cache in probe(file_of(raw)).caches}
    except ConfigError as error:
        return not all(problem.key.startswith("model.probe") for problem in error.problems)
    return not specs or "encoder_only" in specs


def test_an_encoder_is_one_by_its_architecture() -> None:
    tiny = dict(model_type="bert", num_hidden_layers=2, hidden_size=32, num_attention_heads=4,
                intermediate_size=32, vocab_size=97)  # fmt: skip
    for extra in ({}, {"architectures": ["BertForMaskedLM"]}, {"architectures": ["BertModel"]}):
        assert kinds(probe(file_of({**tiny, **extra}))) == [
            (0, "encoder_only"),
            (1, "encoder_only"),
        ]
    decodes = {**tiny, "architectures": ["BertLMHeadModel"], "is_decoder": True}
    assert kinds(probe(file_of(decodes))) == [(0, "full"), (1, "full")]


@pytest.mark.full
def test_the_advice_of_a_refusal_works(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(file_of(written(odd_config("xlnet"))))
    (problem,) = caught.value.problems
    assert "a copy of conf/model/llama.yaml as DIR/model/NAME.yaml" in str(problem)
    (tmp_path / "model").mkdir()
    copy = (ROOT / "conf/model/llama.yaml").read_text().replace("count: 32", "count: 7")
    (tmp_path / "model/mine.yaml").write_text(copy)
    done = subprocess.run(
        [sys.executable, "-m", "kvpipe", "--config-dir", str(tmp_path), "model=mine",
         "report=json", "command.document=full", "device=h100_80gb"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, check=True,
    )  # fmt: skip
    assert "model.layers.6.self_attn.attn" in done.stdout
