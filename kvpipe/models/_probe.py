"""Asking transformers what a model caches, and telling it as an engine stores it.

The generic route for whatever transformers can build: no memory, no weights, a few seconds. An
engine stores latent rows in one piece, one column less of each convolution, no window that spans
the context, and K/V heads before they are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.models.config_file import ConfigFile
from kvpipe.models.families import families
from kvpipe.models.families.base import Config
from kvpipe.models.families.deepseek import indexer_cache
from kvpipe.models.families.gpt import falcon_kv_heads

_WINDOWS = {"sliding": "sliding_window", "chunked": "attention_chunk_size"}
_LAYER_KEYS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers",
    "encoder_layers", "decoder_layers", "num_decoder_layers",
)  # fmt: skip
# Families that repeat their K/V heads before they cache them: the heads an engine stores.
_REPEATED_HEADS: dict[str, Callable[[Config], int]] = {"falcon": falcon_kv_heads}


@dataclass(frozen=True, kw_only=True)
class ProbedLayer:
    """What transformers cached in one layer: kind full, sliding, chunked, state or none.

    window: tokens, of sliding and chunked layers. indexer: numbers of a sparse-attention key. conv
    and recurrent: shapes without the batch; a convolution has as many columns as its kernel.
    """

    kind: str
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int | None = None
    indexer: int = 0
    conv: tuple[tuple[int, ...], ...] = ()
    recurrent: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Layers in order, cross attention apart. shares: layer -> the layer whose cache it reads."""

    layers: tuple[ProbedLayer, ...]
    cross: tuple[ProbedLayer, ...]
    shares: Mapping[int, int]
    parameter_count: int
    config: Any


def probe(file: ConfigFile) -> ModelGeometry:
    """The geometry of any config.json that transformers can build; ConfigError where it cannot."""
    probed = cached_by_transformers(file)
    config = Config(file.text)
    read = _reader(probed.config, config)
    context = read("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len")
    geometry = ModelGeometry(
        name=file.name,
        file_dtype=file.dtype or "float32",
        context_length=context or 2**20,
        num_layers=len(probed.layers),
        caches=(),
        hidden_size=read("hidden_size"),
        intermediate_size=read("intermediate_size", "ffn_dim"),
        vocab_size=read("vocab_size"),
        num_attention_heads=read("num_attention_heads"),
        parameter_count=probed.parameter_count,
        encoder_tokens=(read("max_source_positions") or context or 512) if probed.cross else 0,
        source="probe of transformers",
    )
    heads = _REPEATED_HEADS.get(file.model_type)
    own_heads = heads(families()[file.model_type].config(file.text)) if heads else None
    try:
        caches = _engine_caches(probed, geometry.context_length, own_heads)
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise _cannot(file, error) from error  # its config has not the keys that others have
    return replace(geometry, caches=caches)


def _reader(built: Any, written: Config) -> Callable[..., int]:
    """The first whole number under any of some names, in the built config or in the file."""

    def read(*names: str) -> int:
        values = [getattr(built, name, None) or written.get(name) for name in names]
        return next((value for value in values if isinstance(value, int)), 0)

    return read


def cached_by_transformers(file: ConfigFile) -> Probed:
    """What transformers caches; ConfigError where it is missing, or cannot run the model."""
    for key in _LAYER_KEYS:  # building takes as long as there are layers
        Config(file.text).layers(key, 1)
    try:
        from kvpipe.models import _meta_model
    except ImportError as error:
        raise ConfigError(
            Problem(
                "model.probe",
                "transformers and torch, to build the model with",
                f"no {error.name}",
                "pip install torch transformers, or model.probe=false",
            )
        ) from error
    try:
        return _meta_model.run(_meta_model.build_config(file.model_type, file.text))
    except Exception as error:  # a modeling file may fail in any way on the meta device
        raise _cannot(file, error) from error


def _cannot(file: ConfigFile, error: Exception) -> ConfigError:
    told = (str(error).strip().splitlines() or [""])[0]
    return ConfigError(
        Problem(
            "model.probe",
            f"a model of type '{file.model_type}' that transformers can build and run",
            f"{type(error).__name__}: {told}",
            "write its geometry into a file of conf/model instead",
        )
    )


# --- what an engine stores of it ---------------------------------------------------------------
def _engine_caches(
    probed: Probed, context_length: int, heads: int | None
) -> tuple[CacheGeometry, ...]:
    prefix = "model.decoder.layers" if probed.cross else "model.layers"
    encoder_only = not any(layer.k_dim or layer.conv or layer.recurrent for layer in probed.layers)
    caches: list[CacheGeometry] = []
    for index, layer in enumerate(probed.layers):
        source = probed.layers[probed.shares.get(index, index)]
        target = probed.shares.get(index)
        if source.k_dim:
            attention = _attention(index, prefix, source, probed.config, context_length, heads)
            caches.append(_sharing(attention, index, target))
        if layer.indexer:
            caches.append(indexer_cache(index, layer.indexer))
        if layer.conv or layer.recurrent:
            caches.append(_state(index, prefix, layer, probed.config))
        if probed.cross:
            caches.append(_cross(index, prefix, probed.cross[index]))
        if encoder_only:
            caches.append(_encoder_only(index, probed.config))
    return tuple(caches)


def _sharing(cache: CacheGeometry, index: int, target: int | None) -> CacheGeometry:
    if target is None:
        return cache
    return replace(cache, shares_with=cache.name.replace(f".{index}.", f".{target}.", 1))


def _attention(
    index: int,
    prefix: str,
    layer: ProbedLayer,
    config: Any,
    context_length: int,
    heads: int | None,
) -> CacheGeometry:
    name = f"{prefix}.{index}.self_attn.attn"
    if layer.kv_heads == 1 and layer.k_dim == getattr(config, "kv_lora_rank", None):
        row = {"head_size": layer.k_dim + layer.v_dim}
        return CacheGeometry(name=name, layer=index, spec="mla", fields=row)
    fields = {"num_kv_heads": heads or layer.kv_heads, "head_size": layer.k_dim}
    if layer.v_dim != layer.k_dim:
        fields["head_size_v"] = layer.v_dim
    spec = layer.kind if layer.kind in _WINDOWS else "full"
    if spec in _WINDOWS and layer.window and layer.window < context_length:
        fields[_WINDOWS[spec]] = layer.window
    else:
        spec = "full"
    return CacheGeometry(name=name, layer=index, spec=spec, fields=fields)


def _state(index: int, prefix: str, layer: ProbedLayer, config: Any) -> CacheGeometry:
    """One column less than the kernel: an engine does not keep the token that leaves."""
    conv = [[*shape[:-1], shape[-1] - 1] for shape in layer.conv]
    named = [("conv", conv), ("ssm", [list(shape) for shape in layer.recurrent])]
    states = [
        {"name": name if i == 0 else f"{name}_{i}", "shape": shape}
        for name, shapes in named
        for i, shape in enumerate(shapes)
    ]
    fields: dict[str, Any] = {"mamba_type": "state", "states": states}
    for key in ("mamba_n_groups", "mamba_ngroups", "n_groups"):
        if getattr(config, key, None) and layer.recurrent:
            fields["num_groups"] = getattr(config, key)
    return CacheGeometry(name=f"{prefix}.{index}.mixer", layer=index, spec="mamba", fields=fields)


def _cross(index: int, prefix: str, layer: ProbedLayer) -> CacheGeometry:
    fields = {"num_kv_heads": layer.kv_heads, "head_size": layer.k_dim}
    name = f"{prefix}.{index}.encoder_attn.attn"
    return CacheGeometry(name=name, layer=index, spec="cross", fields=fields)


def _encoder_only(index: int, config: Any) -> CacheGeometry:
    heads = config.num_attention_heads
    fields = {"num_kv_heads": heads, "head_size": config.hidden_size // heads}
    name = f"encoder.layer.{index}.attention.self"
    return CacheGeometry(name=name, layer=index, spec="encoder_only", fields=fields)
