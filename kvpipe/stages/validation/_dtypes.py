"""auto dtypes -> what is served and stored, with a note where that is not what the file says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from kvpipe.engines.base import Engine, EngineRules
from kvpipe.engines.defaults import declared_cache_wins
from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import ModelGeometry
from kvpipe.notes import Note
from kvpipe.plugins import REGISTRIES
from kvpipe.request.config import CacheConfig, CacheDtype, PluginChoice
from kvpipe.specs.packed_types import WORDS
from kvpipe.specs.scaled_rows import SCALED_ROWS
from kvpipe.stages.validation._scaled_rows import scaled_rows
from kvpipe.stages.validation.base import ResolvedDevice


@dataclass(frozen=True, kw_only=True)
class ResolvedDtypes:
    """served: weights and activations. cache: the configured word without auto. kv: how K and V
    are stored, number by number (packed ones: as before they are packed). conv, ssm: how states
    are."""

    served: str
    cache: str
    kv: str
    conv: str
    ssm: str
    notes: tuple[Note, ...]


def resolve_dtypes(
    asked: str, model: ModelGeometry, cache: CacheConfig, device: ResolvedDevice, version: str
) -> ResolvedDtypes:
    """asked: model.dtype. version: the planned release ("": kvpipe's own rules). A float32 file is
    served in 16 bits, as engines do; states follow the model, unless the configuration or the
    model's own file names a dtype for them."""
    notes: list[Note] = []
    served = model.file_dtype if asked == "auto" else asked
    if asked == "auto" and served == "float32":
        served = _sixteen_bits(device)
        notes.append(
            Note(
                text=f"the float32 checkpoint is served as {served}, as engines do",
                knob="model.dtype",
            )
        )
    notes += _declared(model, cache)
    auto = model.kv_dtype or served
    word = {"auto": auto, "fp8": "fp8_e4m3"}.get(cache.cache_dtype, cache.cache_dtype)
    if auto == "fp8_ds_mla" and word.startswith("fp8"):  # the one format of 8 bits for its rows
        word = auto
    if model.has_kv_scheme and word != auto and declared_cache_wins(version):
        text = f"vLLM {version} stores a cache of {auto}, which the checkpoint declares"
        text += f", whatever is set ({word})"
        notes.append(Note(text=text, knob="cache.cache_dtype", is_warning=True))
        word = auto
    kv = served if word in WORDS else "uint8" if word == "fp8_ds_mla" else word
    conv = _state(cache.mamba_cache_dtype, model.conv_dtype, served)
    ssm = _state(cache.mamba_ssm_cache_dtype, model.ssm_dtype, conv)
    if cache.mamba_ssm_cache_dtype == "auto" and model.ssm_dtype not in (None, conv):
        notes.append(
            Note(
                text=f"recurrent states are {ssm}, as the model's file says; conv states {conv}",
                knob="cache.mamba_ssm_cache_dtype",
            )
        )
    return ResolvedDtypes(served=served, cache=word, kv=kv, conv=conv, ssm=ssm, notes=tuple(notes))


def packed_dtype(word: str, asked: str, engine: PluginChoice) -> list[Problem]:
    """A packed type is refused where kvpipe would have to lay its blocks out; engines that are
    planned only say themselves which they store, and so do releases of rows with scales.
    asked: the configured word, which is auto where the checkpoint declares the type."""
    if word not in WORDS or not isinstance(engine.make(Engine), EngineRules):
        return []
    if scaled_rows(word, engine):
        return []
    plain = ", ".join(name for name in get_args(CacheDtype) if name not in WORDS)
    engines = REGISTRIES["engine"]
    stores = [n for n in engines.names() if word in getattr(engines.get(n), "cache_types", ())]
    stores += ["vllm"] if word in SCALED_ROWS else []
    knob = f"engine={' or engine='.join(stores)} stores it" if stores else "no engine here does"
    got = f"'{word}'" if asked == word else f"'{word}', which the checkpoint declares"
    return [Problem("cache.cache_dtype", f"for engine={engine.name} one of {plain}", got, knob)]


def _declared(model: ModelGeometry, cache: CacheConfig) -> list[Note]:
    """A checkpoint that was quantised with its cache says so, and engines follow it."""
    if model.kv_dtype is None or cache.cache_dtype != "auto":
        return []
    if model.kv_dtype not in get_args(CacheDtype):
        raise ConfigError(
            Problem(
                "cache.cache_dtype",
                f"a dtype that kvpipe plans, where the checkpoint declares {model.kv_dtype}",
                "auto",
                "set it, for example cache.cache_dtype=fp8, and serve with the same",
            )
        )
    told = "the checkpoint declares" if model.kv_dtype != "fp8_ds_mla" else "this model has"
    text = f"{told} a KV cache of {model.kv_dtype}, which engines take for auto"
    return [Note(text=text, knob="cache.cache_dtype")]


def _sixteen_bits(device: ResolvedDevice) -> str:
    """bfloat16, but float16 on GPUs before Ampere, which have no bfloat16 arithmetic."""
    old = device.compute_capability is not None and device.compute_capability < (8, 0)
    return "float16" if old else "bfloat16"


def _state(asked: str, of_file: str | None, default: str) -> str:
    return asked if asked != "auto" else (of_file or default)
