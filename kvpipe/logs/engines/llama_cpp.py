"""llama.cpp: sizes of its buffers in MiB, a line a device, and the context they are for.

Lines as they stand in ggml-org/llama.cpp's pull requests 8035 (2024, "llm_load_tensors") and 11397
(2025, "load_tensors", "llama_kv_cache").
"""

from __future__ import annotations

import re

from kvpipe.logs.engines.base import LoggedEngine
from kvpipe.logs.phrases import Phrase, size_mib


def _positive(value: int) -> int | None:
    return value or None


_PADDED = re.compile(r" {0,12}= ([\d,]{1,120})")  # names are padded to one width

ENGINE = LoggedEngine(
    name="llama.cpp",
    phrases=(
        size_mib("KV buffer size =", "kv_buffer", within="llama_"),
        size_mib("RS buffer size =", "state_buffer", within="llama_"),
        size_mib("KV self size  =", "pool_check", within="llama_"),
        size_mib("buffer size =", "weights", within="load_tensors:"),
        size_mib("compute buffer size =", "activations"),
        Phrase(
            words="n_ctx", names=("context_len",), kind="count", pattern=_PADDED, within="llama_"
        ),
        Phrase(
            words="n_seq_max",
            names=("max_num_seqs",),
            kind="count",
            pattern=_PADDED,
            within="llama_",
        ),
    ),
    starts=("build: ",),
    settings={"context_len": ("scheduler.max_model_len", _positive)},
    pools=("kv_buffer", "state_buffer"),
    sums=("weights",),
)
