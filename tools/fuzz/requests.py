"""Requests at random: settings as a user would write them, and what is planned of them.

A setting is `group` -> the name of a shipped option, or `group.key` -> a value; `memory` (bytes a
rank) and `length` (tokens) are the two that an invariant moves. What is left out is the default.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from random import Random
from typing import Any

from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.pipeline import Prepared, plan_with, prepare
from kvpipe.request.compose import compose_request, configuration
from kvpipe.request.confdir import CONF_DIR, shipped_option

Settings = Mapping[str, Any]

BASE = ("backend=meta", "device=h100_80gb", "model=gpt2", "profiling=fixed")
DEFAULT_MEMORY, DEFAULT_LENGTH = 1 << 30, 1024


def at_random(seed: Random) -> dict[str, Any]:
    """Mostly legal; about one in four is refused."""
    settings: dict[str, Any] = {
        "model": seed.choice(_models()),
        "memory": int(2 ** seed.uniform(18, 37)),
        "length": max(1, int(2 ** seed.uniform(0, 18))),
    }
    for key, values in _OFTEN.items():
        if seed.random() < 0.3:
            settings[key] = seed.choice(values)
    if seed.random() < 0.1:
        settings |= {"attention": "sliding", "cache.sliding_window": seed.choice((1, 17, 1000))}
    return settings


_OFTEN: dict[str, tuple[Any, ...]] = {
    "engine": ("vllm_0_17", "vllm_0_33", "vllm"),
    "cache.block_size": (1, 3, 8, 16, 17, 32, 48, 64, 128, 256),
    "cache.cache_dtype": ("auto", "float32", "fp8_e4m3", "fp8_e5m2"),
    "cache.enable_prefix_caching": (True, False),
    "cache.disable_hybrid_kv_cache_manager": (True,),
    "cache.mamba_cache_mode": ("align", "all"),
    "parallel.tensor_parallel_size": (2, 4, 8),
    "parallel.pipeline_parallel_size": (2, 3),
    "scheduler.max_num_batched_tokens": (1, 17, 512, 2048, 16384),
    "scheduler.max_num_seqs": (1, 7, 256),
    "scheduler.num_speculative_tokens": (1, 5),
    "layout": ("flash_attn", "flashinfer_nhd", "flashinfer_hnd", "kv_packed"),
    "placement": ("per_tensor", "cross_layer", "lbnhc", "bhlnc"),
}


@cache
def _models() -> list[str]:
    return sorted(p.stem for p in (CONF_DIR / "model").glob("*.yaml") if p.stem != "hf")


@cache
def _base() -> dict[str, Any]:
    with configuration():
        return compose_request([*BASE, "cache.kv_cache_memory_bytes=1GiB"]).raw


def raw_of(settings: Settings) -> dict[str, Any]:
    """The composed values, without Hydra: it would take most of the time."""
    raw = copy.deepcopy(_base())
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if not name and section not in ("memory", "length"):
            raw[section] = dict(shipped_option(section, value))
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if name:
            raw[section][name] = value
    raw["scheduler"]["max_model_len"] = DEFAULT_LENGTH
    return raw


@lru_cache(maxsize=64)
def _prepared(frozen: frozenset[tuple[str, Any]]) -> Prepared | None:
    raw = raw_of(dict(frozen))
    model = raw["model"]
    limit = min((n for k, n in model.items() if k == "context_length" and n), default=None)
    raw["scheduler"]["max_model_len"] = min(DEFAULT_LENGTH, limit or DEFAULT_LENGTH)
    try:
        return prepare(raw)
    except ConfigError:
        return None


def prepared(settings: Settings) -> Prepared | None:
    """None where the request is wrong."""
    return _prepared(frozenset((k, v) for k, v in settings.items() if k not in _MOVED))


_MOVED = ("memory", "length")


def planned(
    settings: Settings, *, memory: int | None = None, length: int | None = None
) -> Plan | DoesNotFit | None:
    """What comes of it; None where it is wrong. memory, length: instead of those it names."""
    request = prepared(settings)
    if request is None:
        return None
    num_bytes = memory if memory is not None else settings.get("memory", DEFAULT_MEMORY)
    tokens = length if length is not None else settings.get("length", DEFAULT_LENGTH)
    resolved = replace(request.resolved, limits=request.resolved.limits.with_length(tokens))
    moved = replace(request, resolved=resolved)
    try:
        return plan_with(moved, (num_bytes,) * len(resolved.ranks), ())
    except DoesNotFit as error:
        return error
    except ConfigError:
        return None
