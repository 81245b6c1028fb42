"""A tiny model of the matrix, the words most files use, and the files a folder needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]
CONTEXT = 1024  # tokens


@dataclass(frozen=True, kw_only=True)
class Model:
    """kind: of its cache, for the page. config: of config.json. engine, overrides: what
    the engine and kvpipe need beside it. draft: the config.json of a draft model, if any. files:
    beside config.json, by name: text, or what is written as JSON."""

    name: str
    kind: str
    config: Config
    engine: Config = field(default_factory=dict)
    draft: Config | None = None
    overrides: tuple[str, ...] = ()
    files: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """The folder with config.json in it."""
        return _written(folder / self.name, {"config.json": self.config, **self.files})

    def write_draft(self, folder: Path) -> Path | None:
        if self.draft is None:
            return None
        return _written(folder / f"{self.name}-draft", {"config.json": self.draft})


def _written(folder: Path, files: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (folder / name).write_text(text)
    return folder


def with_tokenizer(folder: Path) -> Path:
    """The folder, with a word for each of its model's tokens: a server reads and writes text."""
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = {f"w{number}": number for number in range(size)}
    file = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(file))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def decoder(architecture: str, model_type: str, **changes: Any) -> dict[str, Any]:
    """A decoder in the words most files use."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        **changes,
    }


def kinds(full: int, window: int) -> list[str]:
    """Layer types with the full layers spread among the windows, the last of each run full."""
    total = full + window
    marks = {round((i + 1) * total / full) - 1 for i in range(full)}
    return ["full_attention" if i in marks else "sliding_attention" for i in range(total)]


def gemma3(full: int, window: int, **changes: Any) -> dict[str, Any]:
    types = kinds(full, window)
    return decoder(
        "Gemma3ForCausalLM",
        "gemma3_text",
        num_hidden_layers=len(types),
        layer_types=types,
        sliding_window=64,
        query_pre_attn_scalar=32,
        hidden_activation="gelu_pytorch_tanh",
        rope_local_base_freq=10000.0,
        tie_word_embeddings=True,
        **changes,
    )


def latent(architecture: str, model_type: str, **changes: Any) -> dict[str, Any]:
    """A decoder with one latent row a token, of the widths that kernels are written for."""
    sizes = {
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": False,
    }
    found = decoder(architecture, model_type, **{**sizes, **changes})
    del found["head_dim"]
    return found


DEEPSEEK_V3 = latent("DeepseekV3ForCausalLM", "deepseek_v3")

GPT_OSS = decoder(
    "GptOssForCausalLM",
    "gpt_oss",
    sliding_window=128,
    num_local_experts=4,
    num_experts_per_tok=2,
    layer_types=["sliding_attention", "full_attention"] * 2,
    swiglu_limit=7.0,
    attention_bias=True,
)
