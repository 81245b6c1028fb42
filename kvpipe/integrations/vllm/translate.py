"""vLLM's own specs and config -> kvpipe's layers and limits. What is not known is refused.

A field of a spec is taken over, or known not to touch the plan, or must have its default: a field
that a later release adds is not overlooked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvpipe.errors import SpecError
from kvpipe.integrations.vllm.settings import LeftAlone
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.specs.bounds import Bound
from kvpipe.specs.chunked import ChunkedLocalAttentionSpec
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.mamba import MambaSpec, StateArray
from kvpipe.specs.mla import MLAAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec

_DTYPES = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
# Said on a spec for other parts of the engine; blocks and bytes do not depend on them.
_HARMLESS = frozenset(
    {
        "kv_quant_mode",  # a scheme that changes the bytes shows in page_size_bytes, compared below
        "non_causal",
        "max_tp_shards",
        "tp_replicated",
        "indexes_kv_by_block_stride",
        "prefill_checkpoint_alignment",
    }
)
_ATTENTION = (
    *("block_size", "num_kv_heads", "head_size", "head_size_v", "dtype", "page_size_padded"),
    *("state_content_bytes", "tokens_per_state", "dcp_sharded"),
)
_WINDOWS = ("sliding_window", "attention_chunk_size")


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """taken: fields of the engine's spec that `make` reads."""

    taken: tuple[str, ...]
    make: Callable[[Any], KVCacheSpec]


def layers_of(specs: Sequence[Mapping[str, Any]]) -> list[list[CacheLayer]]:
    """A list of CacheLayers a worker. specs: the engine's, by layer name, one mapping a worker."""
    return [
        [CacheLayer(name=name, spec=spec_of(name, spec)) for name, spec in worker.items()]
        for worker in specs
    ]


def spec_of(layer: str, spec: Any) -> KVCacheSpec:
    """LeftAlone where the engine's spec is of a kind, or says something, that is not known."""
    kind = _KINDS.get(type(spec).__name__)
    if kind is None:
        raise LeftAlone(f"layer {layer} has a {type(spec).__name__}, which kvpipe does not know")
    _refuse_unknown_fields(layer, spec, kind)
    try:
        made = kind.make(spec)
    except SpecError as error:
        raise LeftAlone(f"layer {layer}: {error}") from error
    if made.page_size_bytes != spec.page_size_bytes:
        raise LeftAlone(
            f"layer {layer} has pages of {spec.page_size_bytes:,} bytes, kvpipe counts "
            f"{made.page_size_bytes:,}"
        )
    return made


def _refuse_unknown_fields(layer: str, spec: Any, kind: _Kind) -> None:
    for field in fields(spec):
        value = getattr(spec, field.name)
        is_known = field.name in kind.taken or field.name in _HARMLESS
        # A field without a default says something about every layer.
        if not is_known and value is not None and value != field.default:
            raise LeftAlone(
                f"layer {layer} has {type(spec).__name__}.{field.name}={value!r}, which kvpipe "
                "does not know"
            )


def _attention(spec: Any) -> dict[str, Any]:
    taken = {name: getattr(spec, name) for name in _ATTENTION if hasattr(spec, name)}
    return taken | {"dtype": _dtype(spec.dtype)}


def _latent(spec: Any) -> KVCacheSpec:
    taken = {name: value for name, value in _attention(spec).items() if name != "head_size_v"}
    return MLAAttentionSpec(**taken, cache_dtype=spec.cache_dtype_str or "auto")


def _states(spec: Any) -> KVCacheSpec:
    states = tuple(
        StateArray(name=f"state{i}", shape=tuple(shape), dtype=_dtype(dtype))
        for i, (shape, dtype) in enumerate(zip(spec.shapes, spec.dtypes, strict=True))
    )
    return MambaSpec(
        block_size=spec.block_size,
        page_size_padded=spec.page_size_padded,
        states=states,
        mamba_type=str(getattr(spec.mamba_type, "value", spec.mamba_type)),
        mamba_cache_mode=spec.mamba_cache_mode,
        num_speculative_blocks=spec.num_speculative_blocks,
        num_prefill_checkpoint_blocks=getattr(spec, "num_prefill_checkpoint_blocks", 0),
    )


def _dtype(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)


_KINDS: Mapping[str, _Kind] = {
    "FullAttentionSpec": _Kind(
        taken=(*_ATTENTION, *_WINDOWS),
        make=lambda spec: FullAttentionSpec(
            **_attention(spec), remembers=Bound(**{n: getattr(spec, n) for n in _WINDOWS})
        ),
    ),
    "SlidingWindowSpec": _Kind(
        taken=(*_ATTENTION, "sliding_window"),
        make=lambda spec: SlidingWindowSpec(**_attention(spec), sliding_window=spec.sliding_window),
    ),
    "ChunkedLocalAttentionSpec": _Kind(
        taken=(*_ATTENTION, "attention_chunk_size"),
        make=lambda spec: ChunkedLocalAttentionSpec(
            **_attention(spec), attention_chunk_size=spec.attention_chunk_size
        ),
    ),
    "MLAAttentionSpec": _Kind(taken=(*_ATTENTION, "cache_dtype_str"), make=_latent),
    "MambaSpec": _Kind(
        taken=(
            *("block_size", "shapes", "dtypes", "page_size_padded", "mamba_type"),
            *("mamba_cache_mode", "num_speculative_blocks", "num_prefill_checkpoint_blocks"),
        ),
        make=_states,
    ),
}


def limits_of(config: Any) -> RequestLimits:
    """What one request may need, as the engine's config says it."""
    parallel, scheduler = config.parallel_config, config.scheduler_config
    return RequestLimits(
        max_model_len=config.model_config.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_encoder_tokens=getattr(scheduler, "max_num_encoder_input_tokens", 0) or 0,
        max_concurrent_batches=getattr(config, "max_concurrent_batches", 1),
        num_lookahead_tokens=getattr(config, "num_prefill_lookahead_tokens", 0) or 0,
        dcp=parallel.decode_context_parallel_size,
        mamba_cache_mode=config.cache_config.mamba_cache_mode,
    )
