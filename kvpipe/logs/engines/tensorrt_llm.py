"""TensorRT-LLM: what its profiling left for the cache, what it allocated, tokens of it."""

from __future__ import annotations

from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.phrases import argument, count, release, size


def _positive(value: int) -> int | None:
    return value or None


_ALLOCATED = "paged KV cache"
ENGINE = LoggedEngine(
    name="tensorrt-llm",
    phrases=(
        size("device total memory ", "total"),
        size("available KV cache memory when calculating max tokens: ", "budget"),
        size("Estimated max memory in KV cache : ", "budget"),
        size(f" for max tokens in {_ALLOCATED}", "available_kv", before=True),
        count(f"for max tokens in {_ALLOCATED} (", "kv_tokens"),
        count("Number of tokens per block: ", "block_size"),
        *argument("tensor_parallel_size", "tp", "count", within="TensorRT-LLM"),
        release("TensorRT-LLM version: "),
        release("TensorRT LLM version: "),
    ),
    starts=("TensorRT-LLM version: ", "TensorRT LLM version: "),
    settings={"tp": ("parallel.tensor_parallel_size", _positive)},
)
