"""Flags of ours, and keys as people shorten them -> the settings that they are."""

from __future__ import annotations

FLAGS = {
    "--on": "device",
    "--context": "scheduler.max_model_len",
    "--kv": "cache.cache_dtype",
    "--weights": "weights",
    "--users": "want.requests",
}
SHORT_KEYS = {
    "tp": "parallel.tensor_parallel_size",
    "pp": "parallel.pipeline_parallel_size",
    "dp": "parallel.data_parallel_size",
    "engines": "command.engines",
    "folder": "command.folder",
}
