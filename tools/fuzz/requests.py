"""Requests at random: settings as a user would write them, and what is planned of them.

A setting is `group` -> the name of a shipped option, or `group.key` -> a value; `layers` -> the
model with so many (at least its pattern once); `memory` (bytes a rank) and `length` (tokens) are
the two that an invariant moves. What is left out is the default.
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
    settings: dict[str, Any] = {"model": seed.choice(_models()), **moved(seed)}
    if seed.random() < 0.8:  # a model as it is published has more layers, and takes longer
        settings["layers"] = seed.choice((1, 2, 3, 5, 8, 13))
    for key, values in _OFTEN.items():
        if seed.random() < 0.3:
            settings[key] = seed.choice(values)
    if seed.random() < 0.1:
        settings |= {"attention": "sliding", "cache.sliding_window": seed.choice((1, 17, 1000))}
    return settings


def moved(seed: Random) -> dict[str, int]:
    """Another memory and another length."""
    length = max(1, int(2 ** seed.uniform(0, 18)))
    return {"memory": int(2 ** seed.uniform(18, 37)), "length": length}


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
        if "." not in key and key not in _NUMBERS:
            raw[key] = copy.deepcopy(_option(key, value))
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if name:
            raw[section][name] = value
    if "layers" in settings:
        layers = raw["model"]["layers"]
        pattern = sum(int(part.partition(" x ")[2] or 1) for part in layers["pattern"])
        layers["count"] = max(pattern, settings["layers"])
    raw["cache"]["kv_cache_memory_bytes"] = settings.get("memory", DEFAULT_MEMORY)
    raw["scheduler"]["max_model_len"] = settings.get("length", DEFAULT_LENGTH)
    return raw


_MOVED = ("memory", "length")
_NUMBERS = (*_MOVED, "layers")


@cache
def _option(group: str, name: str) -> dict[str, Any]:
    return dict(shipped_option(group, name))


@lru_cache(maxsize=64)
def _prepared(frozen: frozenset[tuple[str, Any]]) -> Prepared | None:
    raw = raw_of(dict(frozen))
    raw["scheduler"]["max_model_len"] = min(
        DEFAULT_LENGTH, raw["model"].get("context_length") or DEFAULT_LENGTH
    )
    try:
        return prepare(raw)
    except ConfigError:
        return None


def prepared(settings: Settings) -> Prepared | None:
    """None where the request is wrong."""
    return _prepared(_frozen(settings))


def planned(
    settings: Settings, *, memory: int | None = None, length: int | None = None
) -> Plan | DoesNotFit | None:
    """What comes of it; None where it is wrong. memory, length: instead of those it names."""
    num_bytes = memory if memory is not None else settings.get("memory", DEFAULT_MEMORY)
    tokens = length if length is not None else settings.get("length", DEFAULT_LENGTH)
    return _planned(_frozen(settings), num_bytes, tokens, fit=False)


def fitted(settings: Settings) -> Plan | DoesNotFit | None:
    """The same with max_model_len=auto, up to the length that is named."""
    memory, length = settings.get("memory", DEFAULT_MEMORY), settings.get("length", DEFAULT_LENGTH)
    return _planned(_frozen(settings), memory, length, fit=True)


def _frozen(settings: Settings) -> frozenset[tuple[str, Any]]:
    return frozenset((key, value) for key, value in settings.items() if key not in _MOVED)


@lru_cache(maxsize=64)  # an invariant asks again what another one asked
def _planned(
    frozen: frozenset[tuple[str, Any]], memory: int, length: int, fit: bool
) -> Plan | DoesNotFit | None:
    request = _prepared(frozen)
    if request is None:
        return None
    limits = request.resolved.limits.with_length(length)
    resolved = replace(request.resolved, limits=limits, fit=fit)
    try:
        return plan_with(replace(request, resolved=resolved), (memory,) * len(resolved.ranks), ())
    except DoesNotFit as error:
        return error
    except ConfigError:
        return None
