"""SGLang: sizes of the arrays it allocated (several pools add up), its token line, server_args."""

from __future__ import annotations

from typing import Any

from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.phrases import WORD, Phrase, argument, count, ratio, release, size

_ALLOCATED = "KV Cache is allocated"


def _positive(value: int) -> int | None:
    return value or None


def _cache_dtype(word: str) -> str | None:
    known = {"fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "bf16": "bfloat16"}
    return known.get(word) or (word if word in ("auto", "bfloat16") else None)


_PHRASES: tuple[Phrase, ...] = (
    size(", K size: ", "k", within=_ALLOCATED),
    size(", V size: ", "v", within=_ALLOCATED),
    size(" KV size: ", "kv", within=_ALLOCATED),
    size(" conv_state size: ", "conv"),
    size(" ssm_state size: ", "ssm"),
    size("KVPool mem usage: ", "pool_check"),
    size("Load weight begin. avail mem=", "before_load"),
    Phrase(words="Load weight end. type=", names=("loaded",), kind="loaded", pattern=WORD),
    size("avail mem=", "after_load", within="Load weight end."),
    size("mem usage=", "weights", within="Load weight end."),
    size("Memory pool end. avail mem=", "after_pool"),
    size("mem usage=", "graphs", within="Capture cuda graph end"),
    count("#tokens: ", "kv_tokens", within=_ALLOCATED),
    *argument("max_total_num_tokens", "kv_tokens", "count", quoted_dict=False),
    *argument("max_running_requests", "max_num_seqs", "count", quoted_dict=False),
    *argument("context_len", "context_len", "count", quoted_dict=False),
    *argument("context_length", "context_len", "count", quoted_dict=False),
    *argument("chunked_prefill_size", "max_num_batched_tokens", "count", quoted_dict=False),
    count("max_mamba_cache_size: ", "max_mamba_cache_size"),
    *argument("tp_size", "tp", "count", quoted_dict=False),
    *argument("pp_size", "pp", "count", quoted_dict=False),
    *argument("page_size", "block_size", "count", quoted_dict=False),
    ratio("mem_fraction_static=", "utilization"),
    *argument("model_path", "model", "path", quoted_dict=False),
    *argument("kv_cache_dtype", "kv_dtype", "word", quoted_dict=False),
    *(
        release(words)
        for words in ("sglang version ", "SGLang version ", "sglang==", "sglang v", "SGLang v")
    ),
)
SETTINGS: dict[str, tuple[str, Any]] = {
    "tp": ("parallel.tensor_parallel_size", _positive),
    "pp": ("parallel.pipeline_parallel_size", _positive),
    "context_len": ("scheduler.max_model_len", _positive),
    "kv_dtype": ("cache.cache_dtype", _cache_dtype),
}
ENGINE = LoggedEngine(
    name="sglang",
    phrases=_PHRASES,
    starts=("server_args=",),
    settings=SETTINGS,
    errors=("Error: ", "out of memory"),
    pools=("k", "v", "kv", "conv", "ssm"),
)
