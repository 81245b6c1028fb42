"""The lines that start servers name what a server can load."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kvpipe.front.main import run

CONFIG = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "num_hidden_layers": 4,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
FULL = pytest.mark.full
LINES = [
    ("kvpipe", "vllm serve"),
    ("sglang", "--model-path"),
    pytest.param("tensorrt_llm", "trtllm-serve", marks=FULL),
    pytest.param("transformers", "transformers serve", marks=FULL),
]


@pytest.mark.parametrize(("engine", "before"), LINES)
@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("qwen/config.json", "./qwen"),
        pytest.param("./qwen/config.json", "./qwen", marks=FULL),
        pytest.param("./qwen", "./qwen", marks=FULL),
    ],
)
def test_a_model_given_as_its_config_is_served_from_the_folder(
    engine, before, written, named, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(CONFIG))
    words = [written, "--on", "l4", "--context", "4k", f"engine={engine}", "backend=meta"]
    assert run(words) == 0
    lines = capsys.readouterr().out.replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if before in line and " --" in line]
    said = shlex.split(line)
    assert said[said.index(before.split()[-1]) + 1] == named
