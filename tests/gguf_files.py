"""Small GGUF files, written here from the format's description."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from typing import Any

Tensors = dict[str, tuple[tuple[int, ...], int]]  # name -> (shape, ggml type)
F16, Q4_K = 1, 12

PAIRS: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Small",
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": [f"word{i}" for i in range(100)],
}


def layer(index: int, *, key: int = 128, value: int = 128) -> Tensors:
    return {
        f"blk.{index}.attn_q.weight": ((256, 256), Q4_K),
        f"blk.{index}.attn_k.weight": ((256, key), Q4_K),
        f"blk.{index}.attn_v.weight": ((256, value), F16),
    }


TENSORS: Tensors = {
    "token_embd.weight": ((256, 100), F16),
    **layer(0),
    **layer(1),
}


def text(word: str) -> bytes:
    encoded = word.encode()
    return pack("<Q", len(encoded)) + encoded


def value_of(value: Any) -> bytes:
    """Type and value; whole numbers are u32, negative ones i32."""
    if isinstance(value, bool):
        return pack("<I?", 7, value)
    if isinstance(value, int):
        return pack("<II", 4, value) if value >= 0 else pack("<Ii", 5, value)
    if isinstance(value, float):
        return pack("<If", 6, value)
    if isinstance(value, str):
        return pack("<I", 8) + text(value)
    kind, *_ = (value_of(entry)[:4] for entry in value)
    return pack("<I", 9) + kind + pack("<Q", len(value)) + b"".join(value_of(v)[4:] for v in value)


def gguf(pairs: Mapping[str, Any] = PAIRS, tensors: Tensors = TENSORS, version: int = 3) -> bytes:
    """Header and tensor table; no weights follow, which no reader of headers needs."""
    head = b"GGUF" + pack("<IQQ", version, len(tensors), len(pairs))
    keys = b"".join(text(key) + value_of(value) for key, value in pairs.items())
    infos = b"".join(
        text(name)
        + pack("<I", len(shape))
        + b"".join(pack("<Q", size) for size in shape)
        + pack("<IQ", kind, 0)
        for name, (shape, kind) in tensors.items()
    )
    return head + keys + infos
