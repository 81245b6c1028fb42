"""What every document says first: which document it is, and of which model, device and engine;
and the model as every report names it."""

from __future__ import annotations

from typing import Any

from kvpipe.engines.base import Engine
from kvpipe.pipeline import Prepared
from kvpipe.request.want import requests_asked
from kvpipe.stages.validation.base import ResolvedRun
from kvpipe.text.figures import count

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


def load_words(prepared: Prepared) -> str:
    """The load that was asked for, and where: `16 users of 32,768 tokens on h100_80gb`."""
    resolved, asked = prepared.resolved, requests_asked(prepared.config.want)
    users = f"{count(asked, 'user')} of " if asked > 1 else ""
    return f"{users}{count(resolved.limits.max_model_len, 'token')} on {where(resolved)}"


def model_words(resolved: ResolvedRun) -> str:
    """The model, and what its weights and its cache are kept in."""
    return f"{resolved.model.name} ({resolved.served_dtype}, cache {resolved.cache_dtype})"
