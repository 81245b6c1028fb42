"""Tiny GGUF files of every kind of cache llama.cpp has: all weights zero, no vocabulary.

Which tensors an architecture must have was taken from its refusals to load without them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import pack
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from gguf_files import text, value_of  # noqa: E402

CONTEXT, WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCAB = 4096, 128, 4, 2, 32, 256, 512
Tensors = dict[str, tuple[int, ...]]  # name -> shape, the fastest axis first
F32, ALIGNMENT = 0, 32


@dataclass(frozen=True, kw_only=True)
class GgufModel:
    """kind: of its cache, for the page. config: the name in `models.py` of the config.json that
    says the same, for kinds that kvpipe does not read from a GGUF file."""

    name: str
    kind: str
    pairs: Mapping[str, Any]
    tensors: Tensors
    config: str | None = None

    def write(self, folder: Path) -> Path:
        path = folder / f"{self.name}.gguf"
        with path.open("wb") as out:
            for part in _file(self.pairs, self.tensors):
                out.write(part)
        return path


# --- the format ----------------------------------------------------------------------------------
def _file(pairs: Mapping[str, Any], tensors: Tensors) -> Iterator[bytes]:
    head = b"GGUF" + pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(text(key) + value_of(value) for key, value in pairs.items())
    offset = 0
    for name, shape in tensors.items():
        head += text(name) + pack("<I", len(shape)) + pack(f"<{len(shape)}Q", *shape)
        head += pack("<IQ", F32, offset)
        offset += _aligned(4 * prod(shape))
    yield head.ljust(_aligned(len(head)), b"\0")
    yield bytes(offset)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


# --- what layers are made of ---------------------------------------------------------------------
def _attention(kv_heads: int = KV_HEADS, head: int = HEAD, bias: bool = False) -> Tensors:
    rows = {"attn_q": HEADS * head, "attn_k": kv_heads * head, "attn_v": kv_heads * head}
    found: Tensors = {"attn_norm.weight": (WIDTH,), "attn_output.weight": (HEADS * head, WIDTH)}
    found |= {f"{name}.weight": (WIDTH, size) for name, size in rows.items()}
    return found | ({f"{name}.bias": (size,) for name, size in rows.items()} if bias else {})


_FEED_FORWARD: Tensors = {
    "ffn_norm.weight": (WIDTH,),
    "ffn_gate.weight": (WIDTH, WIDTH),
    "ffn_up.weight": (WIDTH, WIDTH),
    "ffn_down.weight": (WIDTH, WIDTH),
}
_GEMMA: Tensors = {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
_HEAD_NORMS: Tensors = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}


def _experts(count: int, width: int = WIDTH) -> Tensors:
    return {
        "ffn_gate_inp.weight": (WIDTH, count),
        "ffn_gate_exps.weight": (WIDTH, width, count),
        "ffn_up_exps.weight": (WIDTH, width, count),
        "ffn_down_exps.weight": (width, WIDTH, count),
    }


def _gpt_oss() -> Tensors:
    found = _attention(bias=True) | _experts(4)
    found |= {"post_attention_norm.weight": (WIDTH,), "attn_sinks.weight": (HEADS,)}
    found |= {"attn_output.bias": (WIDTH,), "ffn_gate_inp.bias": (4,)}
    return found | {f"ffn_{part}_exps.bias": (WIDTH, 4) for part in ("gate", "up", "down")}


def _latent(rank: int = 512, rope: int = 64, nope: int = 128) -> Tensors:
    found: Tensors = {
        "attn_norm.weight": (WIDTH,),
        "attn_q_a.weight": (WIDTH, 64),
        "attn_q_a_norm.weight": (64,),
        "attn_q_b.weight": (64, HEADS * (nope + rope)),
        "attn_kv_a_mqa.weight": (WIDTH, rank + rope),
        "attn_kv_a_norm.weight": (rank,),
        "attn_k_b.weight": (nope, rank, HEADS),
        "attn_v_b.weight": (rank, nope, HEADS),
        "attn_output.weight": (HEADS * nope, WIDTH),
    }
    return found | _FEED_FORWARD


def _mamba1(norms: bool = False, state: int = 16, rank: int = 8) -> Tensors:
    found: Tensors = {
        "attn_norm.weight": (WIDTH,),
        "ssm_in.weight": (WIDTH, 2 * INNER),
        "ssm_conv1d.weight": (4, INNER),
        "ssm_conv1d.bias": (INNER,),
        "ssm_x.weight": (INNER, rank + 2 * state),
        "ssm_dt.weight": (rank, INNER),
        "ssm_dt.bias": (INNER,),
        "ssm_a": (state, INNER),
        "ssm_d": (INNER,),
        "ssm_out.weight": (INNER, WIDTH),
    }
    more: Tensors = {
        "ssm_dt_norm.weight": (rank,),
        "ssm_b_norm.weight": (state,),
        "ssm_c_norm.weight": (state,),
    }
    return found | (more if norms else {})


def _mamba2(state: int = 16, heads: int = 8) -> Tensors:
    conv = INNER + 2 * state
    return {
        "attn_norm.weight": (WIDTH,),
        "ssm_in.weight": (WIDTH, INNER + conv + heads),
        "ssm_conv1d.weight": (4, conv),
        "ssm_conv1d.bias": (conv,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (1, heads),
        "ssm_d": (1, heads),
        "ssm_norm.weight": (INNER, 1),
        "ssm_out.weight": (INNER, WIDTH),
    }


_SHORT_CONV: Tensors = {
    "attn_norm.weight": (WIDTH,),
    "shortconv.conv.weight": (3, WIDTH),
    "shortconv.in_proj.weight": (WIDTH, 3 * WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}
_SSM = {"conv_kernel": 4, "inner_size": INNER, "state_size": 16}
_SSM1 = {**_SSM, "time_step_rank": 8}
_SSM2 = {**_SSM, "time_step_rank": 8, "group_count": 1}


# --- models --------------------------------------------------------------------------------------
def _model(
    name: str,
    kind: str,
    arch: str,
    layers: Sequence[Tensors],
    *,
    tied: bool = True,
    config: str | None = None,
    output_norm: str = "output_norm",
    ssm: Mapping[str, int] | None = None,
    **changes: Any,
) -> GgufModel:
    """changes: of the architecture's keys, with `__` for a dot."""
    keys = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": WIDTH,
        "block_count": len(layers),
        "vocab_size": VOCAB,
        "rope.dimension_count": HEAD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        **{f"ssm.{key}": value for key, value in (ssm or {}).items()},
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    pairs = {"general.architecture": arch, "general.name": name}
    tensors: Tensors = {"token_embd.weight": (WIDTH, VOCAB), f"{output_norm}.weight": (WIDTH,)}
    tensors |= {} if tied else {"output.weight": (WIDTH, VOCAB)}
    for number, layer in enumerate(layers):
        tensors |= {f"blk.{number}.{part}": shape for part, shape in layer.items()}
    return GgufModel(
        name=name,
        kind=kind,
        pairs=pairs
        | {f"{arch}.{key}": value for key, value in keys.items()}
        | {"tokenizer.ggml.model": "no_vocab"},
        tensors=tensors,
        config=config,
    )


def _hybrid(name: str, arch: str, state: Tensors, attention: Tensors, **more: Any) -> GgufModel:
    """Attention in the third of four layers, as the config of that name has it."""
    heads = [0, 0, KV_HEADS, 0]
    layers = [(attention if count else state) | _FEED_FORWARD for count in heads]
    kind = "states and attention"
    return _model(name, kind, arch, layers, config=name, attention__head_count_kv=heads, **more)


def _all() -> Iterator[GgufModel]:
    dense, wide = _attention() | _FEED_FORWARD, _attention(1, 64) | _FEED_FORWARD
    qwen = _attention(bias=True) | _FEED_FORWARD
    parallel = {part: shape for part, shape in dense.items() if part != "ffn_norm.weight"}
    gemma2, gemma3 = dense | _GEMMA, dense | _GEMMA | _HEAD_NORMS
    one_wide = {"attention__head_count_kv": 1, "attention__key_length": 64}
    window = {"attention__sliding_window": 64}
    yield _model("llama", "full", "llama", [dense] * 4)
    yield _model(
        *("llama-mqa-64", "full", "llama", [wide] * 4),
        **(one_wide | {"attention__value_length": 64, "rope__dimension_count": 64}),
    )
    yield _model("qwen2", "full", "qwen2", [qwen] * 4)
    yield _model("gemma2", "1 window : 1 full", "gemma2", [gemma2] * 4, **window)
    yield _model("gemma3", "5 windows : 1 full", "gemma3", [gemma3] * 12, **window)
    listed = [True, True, True, False] * 3 + [True, True]
    yield _model(
        *("gemma3-listed", "11 windows, 3 full, listed", "gemma3", [gemma3] * 14),
        **(window | {"attention__sliding_window_pattern": listed}),
    )
    yield _model(
        "cohere2", "3 windows : 1 full", "cohere2", [parallel] * 4, logit_scale=1.0, **window
    )
    yield _model(
        "phi3", "full, a window that is not kept", "phi3", [_phi3()] * 4, tied=False, **window
    )
    oss = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": WIDTH}
    yield _model(
        *("gpt-oss", "1 window : 1 full, sinks", "gpt-oss", [_gpt_oss()] * 4),
        **(window | oss),
        tied=False,
    )
    yield _model("deepseek2", "latent", "deepseek2", [_latent()] * 4, **_LATENT_KEYS)
    one = {"feed_forward_length": 0, "attention__head_count": 0, "attention__head_count_kv": 0}
    yield _model("mamba", "mamba-1", "mamba", [_mamba1()] * 4, config="mamba", ssm=_SSM1, **one)
    one["attention__head_count"] = 8  # where a build takes the number of its heads from
    yield _model("mamba2", "mamba-2", "mamba2", [_mamba2()] * 4, config="mamba2", ssm=_SSM2, **one)
    yield _hybrid("jamba", "jamba", _mamba1(norms=True), _attention(), ssm=_SSM1)
    yield _hybrid("granite4", "granitehybrid", _mamba2(), _attention(), ssm=_SSM2)
    yield _hybrid(
        *("lfm2", "lfm2", _SHORT_CONV, _attention() | _HEAD_NORMS),
        output_norm="token_embd_norm",
        shortconv__l_cache=3,
    )


def _phi3() -> Tensors:
    return {
        "attn_norm.weight": (WIDTH,),
        "attn_qkv.weight": (WIDTH, (HEADS + 2 * KV_HEADS) * HEAD),
        "attn_output.weight": (WIDTH, WIDTH),
        "ffn_norm.weight": (WIDTH,),
        "ffn_up.weight": (WIDTH, 2 * WIDTH),
        "ffn_down.weight": (WIDTH, WIDTH),
    }


_LATENT_KEYS = {
    "attention__q_lora_rank": 64,
    "attention__kv_lora_rank": 512,
    "attention__key_length": 576,
    "attention__value_length": 512,
    "attention__key_length_mla": 192,
    "attention__value_length_mla": 128,
    "attention__head_count_kv": 1,
    "rope__dimension_count": 64,
    "leading_dense_block_count": 4,
    "expert_feed_forward_length": 64,
    "expert_shared_count": 1,
}
GGUF_MODELS: Mapping[str, GgufModel] = {model.name: model for model in _all()}
