"""Rows of vLLM with scales of their own: the bytes that its classes say, or a refusal by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvpipe
from kvpipe.front.main import run
from kvpipe.specs.scaled_rows import row_bytes

# Bytes of one row of K and V (a token and head) by head size, as `customize_spec` of the attention
# backends of vLLM 0.28.0, 0.30.0 and 0.32.0 gave them; NVFP4 by FlashInfer's own formula there.
ROWS = {
    "int8_per_token_head": {64: 136, 128: 264, 256: 520},
    "fp8_per_token_head": {64: 136, 128: 264, 256: 520},
    "int4_per_token_head": {64: 72, 128: 136, 256: 264},
    "nvfp4": {size: 2 * (size // 2 + size // 16) for size in (64, 128, 256)},
}
CARD = ["llama", "--on", "b200", "--context", "8k"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("word", ROWS)
def test_a_row_has_the_bytes_that_the_engine_says(word: str) -> None:
    assert {size: row_bytes(word, size, size) for size in ROWS[word]} == ROWS[word]


@pytest.mark.parametrize("word", ROWS)
@pytest.mark.parametrize("version", ["0.28.0", "0.32.0"])
def test_a_plan_counts_its_rows_and_the_line_asks_for_them(word, version, capsys) -> None:
    asked = [*CARD, "--kv", word, "engine=vllm", f"engine.version={version}", "report=json"]
    assert run(asked) == 0
    told = json.loads(capsys.readouterr().out)
    (rank,) = told["plan"]["ranks"]
    assert rank["bytes_per_block"] == 16 * 32 * 8 * ROWS[word][128]  # tokens, layers, heads
    assert f"--kv-cache-dtype {word} " in told["serve"]
    assert not any("inferred" in note["text"] for note in told["notes"])


def test_a_release_that_was_not_read_is_inferred_and_says_so(capsys) -> None:
    assert run([*CARD, "--kv", "int8_per_token_head", "engine=vllm_0_33", "report=json"]) == 0
    notes = [note["text"] for note in json.loads(capsys.readouterr().out)["notes"]]
    assert any("0.28.0, 0.30.0, 0.32.0 count them: inferred for 0.33.0" in text for text in notes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("llama --on b200 --kv nvfp4 engine=vllm engine.version=0.27.0", "one of auto, float16"),
        ("llama --on b200 --kv int8_per_token_head", "engine=vllm stores it"),
        ("llama --on h100 --kv nvfp4 engine=vllm engine.version=0.30.0", "capability 10.x, got"),
        ("llama3_2_1b --on h100 --kv nvfp4 engine=vllm engine.version=0.32.0", "more than 64"),
        ("llama --on cpu --kv fp8_per_token_head engine=vllm", "stores on a CPU"),
        ("jamba --on b200 --kv int8_per_token_head engine=vllm", "other than full and sliding"),
        ("deepseek_v3 --on 8xb200 --kv nvfp4 engine=vllm", "other than full and sliding"),
    ],
)
def test_what_was_not_read_or_is_refused_there_is_refused(words, said, capsys) -> None:
    assert run(words.split()) == 2
    told = capsys.readouterr().err
    assert "cache.cache_dtype" in told and said in told, told


def test_windows_and_full_layers_share_one_size_of_page() -> None:
    words = ["gemma3_27b", "device=b200", "engine=vllm", "engine.version=0.32.0", "backend=meta"]
    plan = kvpipe.run([*words, "cache.cache_dtype=int8_per_token_head"]).plan
    specs = [group.layer_spec(name) for group in plan.groups for name in group.layer_names]
    assert {spec.kind for spec in specs} == {"full", "sliding"}
    row = ROWS["int8_per_token_head"][128]
    assert {spec.page_size_bytes for spec in specs} == {16 * 16 * row}  # tokens, heads


def test_a_declared_type_that_the_engine_does_not_store_is_not_planned_as_another(
    tmp_path: Path, capsys
) -> None:
    config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}
    config |= {"num_hidden_layers": 4, "intermediate_size": 1024, "vocab_size": 1000}
    config |= {"max_position_embeddings": 8192, "torch_dtype": "bfloat16"}
    quantised = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}
    text = json.dumps(config | {"quantization_config": quantised})
    (tmp_path / "config.json").write_text(text)
    assert run([str(tmp_path), "--on", "b200"]) == 2
    assert "got 'nvfp4', which the checkpoint declares" in capsys.readouterr().err
    assert run([str(tmp_path), "--on", "b200", "engine=vllm", "engine.version=0.32.0"]) == 0
