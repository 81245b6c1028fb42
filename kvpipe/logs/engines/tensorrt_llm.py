"""TensorRT-LLM: what its profiling left for the cache, what it allocated, tokens of it.

Lines as they stand in NVIDIA/TensorRT-LLM's issues 1400 (0.8, bytes) and 2398, and in Triton's
tutorials, pull request 150 (2026, GiB).
"""

from __future__ import annotations

from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.phrases import BYTES, Phrase, argument, count, release, size


def _positive(value: int) -> int | None:
    return value or None


_ALLOCATED = "paged KV cache"
_PROFILED = "calculating max tokens in paged kv cache: "
ENGINE = LoggedEngine(
    name="tensorrt-llm",
    phrases=(
        size("device total memory ", "total"),
        size("total: ", "total", within=_PROFILED),
        size("available: ", "budget", within=_PROFILED),
        size("available KV cache memory when calculating max tokens: ", "budget"),
        size("Estimated max memory in KV cache : ", "budget"),
        size(f" for max tokens in {_ALLOCATED}", "available_kv", before=True),
        Phrase(
            words="[INFO] Allocate ",
            names=("available_kv",),
            kind="bytes",
            pattern=BYTES,
            rare=" bytes for k/v cache",
        ),
        count(f"for max tokens in {_ALLOCATED} (", "kv_tokens"),
        count("[INFO] Using ", "kv_tokens", rare=f" tokens in {_ALLOCATED}"),
        count("Number of tokens per block: ", "block_size"),
        *argument("tensor_parallel_size", "tp", "count", within="TensorRT-LLM"),
        release("TensorRT-LLM version: "),
        release("TensorRT LLM version: "),
    ),
    starts=("TensorRT-LLM version: ", "TensorRT LLM version: "),
    settings={"tp": ("parallel.tensor_parallel_size", _positive)},
)
