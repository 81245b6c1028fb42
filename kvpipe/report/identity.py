"""What every document says first: which document it is, and of which model, device and engine;
and the model as every report names it."""

from __future__ import annotations

from typing import Any

from kvpipe.engines.base import Engine
from kvpipe.pipeline import Prepared
from kvpipe.stages.validation.base import ResolvedRun

VERSION = 1  # of the documents other than plan.json; goes up as SCHEMA_VERSION does


def identity(prepared: Prepared, schema: str) -> dict[str, Any]:
    """Sizes are bytes, lengths tokens, times seconds, as the names of all keys say."""
    resolved = prepared.resolved
    rules = prepared.config.plugins["engine"].make(Engine).rules
    return {
        "schema": schema,
        "schema_version": VERSION,
        "model": resolved.model.name,
        "weights": resolved.model.quantized_with or resolved.served_dtype,
        "cache_dtype": resolved.cache_dtype,
        "device": resolved.device.name,
        "device_bytes": resolved.device.total_bytes,
        "engine": prepared.config.plugins["engine"].name,
        "engine_version": rules.version or None,
        "tensor_parallel_size": resolved.parallel.tp,
        "pipeline_parallel_size": resolved.parallel.pp,
        "data_parallel_size": resolved.parallel.dp,
        "max_model_len_tokens": resolved.limits.max_model_len,
    }


def where(resolved: ResolvedRun) -> str:
    """The device; of several copies of the ranks, that it is one of them that is told."""
    copies = resolved.parallel.dp
    return resolved.device.name + (f", one of {copies:,} copies" if copies > 1 else "")


def model_words(resolved: ResolvedRun) -> str:
    """The model, and what its weights and its cache are kept in."""
    return f"{resolved.model.name} ({resolved.served_dtype}, cache {resolved.cache_dtype})"
