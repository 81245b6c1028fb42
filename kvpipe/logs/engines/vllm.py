"""vLLM (and engines built on it), 0.2 to 0.33: memory, capacity, refusal and its own settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.phrases import (
    BYTES,
    COUNT,
    DRAFT,
    FREE,
    GROUPS,
    PADDING,
    SIZE_OF,
    WORD,
    Phrase,
    argument,
    count,
    ratio,
    release,
    size,
)
from kvpipe.specs.scaled_rows import SCALED_ROWS

_SIZES = (
    size("Available KV cache memory: ", "available_kv"),
    size("kv_cache_size=", "available_kv"),
    size("memory reserved for KV Cache is ", "available_kv"),
    size("available KV cache memory (", "available_kv"),
    size(" memory for KV Cache as specified", "available_kv", before=True),
    size("total_gpu_memory=", "total"),
    size("total_gpu_memory (", "total"),
    size(") = ", "requested", within="gpu_memory_utilization ("),
    size("/", "total", within="Free memory on device "),
    size(", ", "requested", within="Desired GPU memory utilization is ("),
    size(", ", "requested", within="desired GPU memory utilization ("),
    size(", ", "requested", within="external process's weights ("),
    Phrase(words="(", names=("free",), kind="size", pattern=FREE, within="Free memory on device "),
    size("odel weights take ", "weights"),
    size("Loading model weights took ", "weights"),
    size("Model loading took ", "weights"),
    size("Actual usage is ", "weights"),
    size("Actual usage: ", "weights"),
    size("weights memory: ", "weights"),
    size("PyTorch activation peak memory takes ", "activations"),
    size(" for peak activation", "activations", before=True),
    size("non_torch_memory=", "non_torch"),
    size("non_torch_memory takes ", "non_torch"),
    size(" for non-torch memory", "non_torch", before=True),
    size("peak_torch_memory=", "peak_torch"),
    size("Estimated CUDA graph memory: ", "graphs"),
    *(
        size(f" for {kind} memory", "graphs", before=True)
        for kind in ("CUDAGraph", "CUDA graph", "NPU graph")
    ),
    size(" took ", "graphs", within="Graph capturing finished in "),
    size(" KV cache is needed", "needed", before=True),
    # The CPU worker: "Explicitly set (0.06/23.54) GiB for KV cache on node 0."
    *(
        Phrase(words=words, names=("available_kv", "total"), kind="size", pattern=SIZE_OF)
        for words in ("Explicitly set (", "Auto set (")
    ),
    size(", with ", "requested", within="Auto set ("),
)
# Some builds print bytes.
_BYTES = (
    Phrase(words="Available memory: ", names=("available_kv",), kind="bytes", pattern=BYTES),
    Phrase(
        words="total memory: ",
        names=("total",),
        kind="bytes",
        pattern=BYTES,
        within="Available memory: ",
    ),
)
_DEVICES = ("GPU", "NPU", "TPU", "HPU", "XPU", "cuda", "rocm", "npu", "xpu")
_COUNTS = (
    *(count(f"# {what} blocks: ", "num_gpu_blocks") for what in _DEVICES),
    count("# CPU blocks: ", "num_cpu_blocks"),
    count("KV cache size: ", "kv_tokens"),
    count("Maximum concurrency for ", "concurrency_len"),
    count("estimated maximum model length is ", "estimated_max_len"),
    count("max seq len (", "max_model_len"),
    count(
        "be stored in KV cache (",
        "kv_tokens",
        within="is larger than the maximum number of tokens",
    ),
    count("Setting attention block size to ", "attention_block"),
)
_RATIOS = (
    ratio("tokens per request: ", "max_concurrency", within="Maximum concurrency for "),
    *(ratio(f"gpu_memory_utilization{mark}", "utilization") for mark in ("=", " (", "': ")),
    ratio("Desired GPU memory utilization is (", "utilization"),
    ratio("desired GPU memory utilization (", "utilization"),
    ratio("external process's weights (", "utilization"),
    ratio("current --gpu-memory-utilization=", "utilization"),
)
_WORDS = (
    release("LLM engine (v", within="Initializing a"),
    release("LLM engine (v"),
    release("vLLM API server version "),
    release("vLLM version "),
    release("vLLM server version "),
    release("version ", within="\u2588"),  # the banner, which has no word of the engine's name
    Phrase(
        words="Add ",
        names=("padding_layers", "padding_percent"),
        kind="padding",
        pattern=PADDING,
        rare="padding layers, may waste",
        every=True,
    ),
)
_CONFIG = "with config: "
# What it warns of as it plans, where no setting is printed.
_WARNED = (
    Phrase(words="Hybrid KV cache manager is ", names=("hybrid",), kind="word", pattern=WORD),
    Phrase(words="Auto-fit max_model_len: ", names=("fitted",), kind="word", pattern=WORD),
)
# kvpipe's own plug-in in it (integrations/vllm).
_KVPIPE = (
    Phrase(words=" -> ", names=("regrouped",), kind="regrouped", pattern=GROUPS, within="kvpipe: "),
    Phrase(words="kvpipe: holds ", names=("kvpipe_report",), kind="word", pattern=COUNT),
    Phrase(
        words="kvpipe: the engine's own plan stays: ",
        names=("kvpipe_left",),
        kind="word",
        pattern=re.compile(r"(.{1,400})"),
    ),
)
# "speculative_config=SpeculativeConfig(method='eagle', model='/a/draft', num_spec_tokens=2)"
_DRAFT = Phrase(words="SpeculativeConfig(method=", names=("draft",), kind="path", pattern=DRAFT)
_ARGUMENTS = (
    _DRAFT,
    *argument("model", "model", "path", within=_CONFIG),
    *argument("model", "model", "path", within="non-default args: "),
    *argument("model_tag", "model", "path", within="args: "),
    *argument("max_seq_len", "max_model_len", "count"),
    *argument("max_model_len", "max_model_len", "count"),
    *argument("tensor_parallel_size", "tp", "count"),
    *argument("pipeline_parallel_size", "pp", "count"),
    *argument("data_parallel_size", "dp", "count"),
    *argument("decode_context_parallel_size", "dcp", "count"),
    *argument("max_num_batched_tokens", "max_num_batched_tokens", "count"),
    *argument("max_num_seqs", "max_num_seqs", "count"),
    *argument("block_size", "block_size", "count"),
    *argument("num_gpu_blocks_override", "num_gpu_blocks_override", "count"),
    *argument("kv_cache_memory_bytes", "kv_cache_memory_bytes", "count"),
    *argument("num_speculative_tokens", "draft_tokens", "count"),
    *argument("num_spec_tokens", "draft_tokens", "count"),
    *argument("swap_space", "swap_gib", "ratio"),
    *argument("cpu_offload_gb", "offload_gib", "ratio"),
    *argument("kv_offloading_size", "offload_gib", "ratio"),
    *argument("kv_cache_dtype", "kv_dtype", "word"),
    *argument("dtype", "dtype", "word", within=_CONFIG),
    *argument("dtype", "dtype", "word", within="non-default args: "),
    *argument("mamba_cache_mode", "mamba_cache_mode", "word"),
    *argument("mamba_cache_dtype", "mamba_cache_dtype", "word"),
    *argument("mamba_ssm_cache_dtype", "mamba_ssm_cache_dtype", "word"),
    *argument("enable_prefix_caching", "prefix_caching", "truth"),
    *argument("disable_hybrid_kv_cache_manager", "disable_hybrid", "truth"),
    *argument("enforce_eager", "enforce_eager", "truth"),
)


def _as_is(value: Any) -> Any:
    return value


_WIDE_TYPES = ("auto", "float16", "bfloat16", "float32")
_CACHE_TYPES = (*_WIDE_TYPES, "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", *SCALED_ROWS)


def _cache_dtype(word: str) -> str | None:
    return word if word in _CACHE_TYPES else None


def _model_dtype(word: str) -> str | None:
    return {"half": "float16"}.get(word) or (
        word if word in ("float16", "bfloat16", "float32") else None
    )


def _mode(word: str) -> str | None:
    return word if word in ("none", "align", "all") else None


def _is_disabled(word: str) -> bool | None:
    return True if word == "disabled" else None


def _draft(word: str) -> str:
    """Prediction layers are in the model's own file."""
    return "mtp" if word.endswith("mtp'") else word.rpartition("'")[2]


def _largest(sizes: str) -> int | None:
    """Of "[4, 3, 3]": how many layers groups have, but for the last of a kind."""
    return max((int(size) for size in re.findall(r"\d{1,6}", sizes)), default=0) or None


def _at_least_one(value: int) -> int | None:
    return value or None


SETTINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "max_model_len": ("scheduler.max_model_len", _at_least_one),
    "max_num_batched_tokens": ("scheduler.max_num_batched_tokens", _at_least_one),
    "max_num_seqs": ("scheduler.max_num_seqs", _at_least_one),
    "draft_tokens": ("scheduler.num_speculative_tokens", _as_is),
    "draft": ("model.draft", _draft),
    "tp": ("parallel.tensor_parallel_size", _at_least_one),
    "pp": ("parallel.pipeline_parallel_size", _at_least_one),
    "dp": ("parallel.data_parallel_size", _at_least_one),
    "dcp": ("parallel.decode_context_parallel_size", _at_least_one),
    "block_size": ("cache.block_size", _at_least_one),
    "kv_dtype": ("cache.cache_dtype", _cache_dtype),
    "mamba_cache_mode": ("cache.mamba_cache_mode", _mode),
    "mamba_cache_dtype": ("cache.mamba_cache_dtype", _model_dtype),
    "mamba_ssm_cache_dtype": ("cache.mamba_ssm_cache_dtype", _model_dtype),
    "prefix_caching": ("cache.enable_prefix_caching", _as_is),
    "disable_hybrid": ("cache.disable_hybrid_kv_cache_manager", _as_is),
    "hybrid": ("cache.disable_hybrid_kv_cache_manager", _is_disabled),
    "enforce_eager": ("profiling.enforce_eager", _as_is),
    "num_gpu_blocks_override": ("cache.num_gpu_blocks_override", _at_least_one),
    "dtype": ("model.dtype", _model_dtype),
    "regrouped": ("engine.layers_per_group", _largest),
}
_EMPTY = "No available memory for the cache blocks"
ENGINE = LoggedEngine(
    name="vllm",
    phrases=(*_SIZES, *_BYTES, *_COUNTS, *_RATIOS, *_WORDS, *_WARNED, *_KVPIPE, *_ARGUMENTS),
    starts=("LLM engine (v", "API server version", "non-default args: "),
    settings=SETTINGS,
    errors=("Error: ", "out of memory", _EMPTY),
    empty=_EMPTY,
    echoes=("See root cause above", "Engine core initialization failed", "for root cause."),
)
