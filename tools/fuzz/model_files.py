"""Model files at random: a config.json or a GGUF header is read, or refused in a line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from struct import pack
from tempfile import TemporaryDirectory
from typing import Any

from fuzz.mutated import content, values
from kvpipe.errors import ConfigError
from kvpipe.models.hf import PLUGIN

_BASE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
_MORE: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"model_type": "mistral", "sliding_window": 1024},
    {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6},
    {"model_type": "gemma2", "sliding_window": 512, "layer_types": ["full_attention"] * 4},
    {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    {"model_type": "deepseek_v3", "kv_lora_rank": 64, "qk_rope_head_dim": 16, "q_lora_rank": None},
    {"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 16},
    {"model_type": "mamba2", "state_size": 16, "num_heads": 8, "n_groups": 1, "conv_kernel": 4},
    {"model_type": "qwen3_next", "linear_num_value_heads": 4, "linear_key_head_dim": 32},
    {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 1024},
    {"model_type": "t5", "d_model": 256, "d_kv": 64, "num_heads": 4, "num_layers": 4},
    {"model_type": "falcon_h1", "mamba_d_ssm": 256, "mamba_n_heads": 8, "mamba_d_state": 16},
    {"model_type": "gemma3", "text_config": {**_BASE, "model_type": "gemma3_text"}},
    {"model_type": "llama", "quantization_config": {"quant_method": "awq", "bits": 4}},
    {"model_type": "nobody_knows", "num_key_value_heads": 2},
)
_PAIRS: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Small",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 256,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b"],
}


def config_at_random(seed: Random) -> bytes:
    """The bytes of a config.json."""
    made = json.dumps(values(_BASE | seed.choice(_MORE), seed), ensure_ascii=False)
    whole = made.encode("utf-8", "surrogatepass")
    return content(whole, seed) if seed.random() < 0.2 else whole


def gguf_at_random(seed: Random) -> bytes:
    pairs = values(_PAIRS, seed) if seed.random() < 0.7 else dict(_PAIRS)
    keys = b"".join(_text(str(key)) + _value(value) for key, value in pairs.items())
    tensors = b"".join(
        _text(f"blk.{n}.attn_k.weight")
        + pack("<IQQIQ", 2, 256, 128, seed.choice((0, 1, 12, 99)), 0)
        for n in range(2)
    )
    whole = b"GGUF" + pack("<IQQ", 3, 2, len(pairs)) + keys + tensors
    return content(whole, seed) if seed.random() < 0.7 else whole


def _text(word: str) -> bytes:
    encoded = word.encode("utf-8", "surrogatepass")
    return pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return pack("<I?", 7, value)
    if isinstance(value, int):
        return pack("<IQ", 10, value % 2**64)
    if isinstance(value, float):
        return pack("<Id", 12, value)
    if isinstance(value, list):
        return pack("<IIQ", 9, 8, len(value)) + b"".join(_text(str(word)) for word in value)
    return pack("<I", 8) + _text(str(value))


def config_is_wrong(made: bytes) -> str:
    return _wrong_with(made, "config.json")


def gguf_is_wrong(made: bytes) -> str:
    return _wrong_with(made, "m.gguf")


def _wrong_with(made: bytes, name: str) -> str:
    """ "" where it ends as it should."""
    with TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(made)
        options = {"reader": "hf", "dtype": "auto", "repo": None, "probe": False, "draft": None}
        try:
            model = PLUGIN(PLUGIN.Options(path=str(file), **options)).read()
        except ConfigError as error:
            lines = error.lines()
            odd = [line for line in lines if not line.isprintable() or len(line) > 10_000]
            return f"a complaint that is no line: {odd[0]!r}" if odd else ""
    sizes = (model.num_layers, model.parameter_count or 0, model.weight_bytes or 0)
    fine = all(math.isfinite(size) and size >= 0 for size in sizes)
    return "" if fine and model.name.isprintable() else f"read as {sizes} of {model.name!r}"
