"""llama.cpp: sizes of its buffers in MiB, and the context they are for."""

from __future__ import annotations

from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.phrases import count, size_mib


def _positive(value: int) -> int | None:
    return value or None


ENGINE = LoggedEngine(
    name="llama.cpp",
    phrases=(
        size_mib("KV buffer size =", "kv_buffer", within="llama_"),
        size_mib("RS buffer size =", "state_buffer", within="llama_"),
        size_mib("model buffer size =", "weights"),
        size_mib("compute buffer size =", "activations"),
        *(count(f"n_ctx{gap}= ", "context_len", lone=True) for gap in (" ", "         ")),
    ),
    starts=("build: ",),
    settings={"context_len": ("scheduler.max_model_len", _positive)},
    pools=("kv_buffer", "state_buffer"),
)
