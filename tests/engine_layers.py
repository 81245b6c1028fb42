"""A record's geometry -> the tool's own validation: one rank's layers, and the limits of a request.

Nothing here knows a rule of an engine. Block sizes, sharding, drafted columns, padding to a shared
page and what cross attention reserves are what a user gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from engine_records import Reading, geometry, given, has_states

from kvpipe.engines.base import Engine, EngineRules
from kvpipe.front.prepared import prepared_request
from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.models.families.states import mamba2_states
from kvpipe.request.config import PluginChoice, RunConfig
from kvpipe.stages.validation.base import ResolvedRun, Validation

LONGEST = 2**20  # tokens, where a record says no length
WHISPER_ENCODER = 1500  # tokens: 30 seconds of sound
KERNEL = 4  # columns of a convolution, where a record says none
Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A reader of the section `model`, and its options: a geometry that is there already."""

    geometry: ModelGeometry
    dtype: str = "auto"

    def read(self) -> ModelGeometry:
        return self.geometry


def resolved(case: Mapping[str, Any], reading: Reading) -> ResolvedRun:
    """As the tool resolves a request for that model; ConfigError where it refuses it."""
    config, tp = _request(reading.version), given(case, "tp") or 1
    length = given(case, "concurrency_len") or given(case, "max_model_len") or LONGEST
    model = Recorded(geometry=model_of(case, reading, length))
    chosen = PluginChoice(key="model.reader", name="recorded", plugin=_itself, options=model)
    changed = replace(
        config,
        plugins={**config.plugins, "model": chosen},
        parallel=config.parallel.model_copy(update={"tensor_parallel_size": tp}),
        cache=config.cache.model_copy(
            update={
                "block_size": given(case, "block_size") or "auto",
                "cache_dtype": reading.kv_dtype,
                "mamba_cache_mode": reading.mamba_mode,
                "mamba_ssm_cache_dtype": reading.ssm_dtype,
            }
        ),
        scheduler=config.scheduler.model_copy(
            update={
                "max_model_len": length,
                "max_num_batched_tokens": reading.batched_tokens,
                "max_num_seqs": 1,
                "num_speculative_tokens": reading.draft_tokens,
            }
        ),
    )
    return changed.plugins["validation"].make(Validation).run(changed)  # type: ignore[type-abstract]


def rules_under(reading: Reading) -> EngineRules:
    return _request(reading.version).plugins["engine"].make(Engine).rules  # type: ignore[type-abstract]


@cache
def _request(version: str) -> RunConfig:
    """Of that release ("": kvpipe's own rules), on a card with every dtype."""
    engine = ["engine=vllm", f"engine.version={version}"] if version else ["engine=kvpipe"]
    return prepared_request([*engine, "device=h100_80gb"]).prepared.config


def _itself(options: Recorded) -> Recorded:
    return options


def model_of(case: Mapping[str, Any], reading: Reading, length: int) -> ModelGeometry:
    shape, tp = geometry(case), given(case, "tp") or 1
    caches = [*attention(shape, tp), *states(shape)]
    return ModelGeometry(
        name=case["id"],
        file_dtype="bfloat16",
        context_length=length,
        num_layers=len(caches),
        caches=tuple(
            CacheGeometry(name=f"model.layers.{i}.attn", layer=i, spec=spec, fields=fields)
            for i, (spec, fields) in enumerate(caches)
        ),
        encoder_tokens=WHISPER_ENCODER if shape.get("cross_attention") else 0,
    )


def attention(shape: Mapping[str, Any], tp: int) -> Iterator[tuple[str, Fields]]:
    """What the record says of its attention layers, of the whole model."""
    own = list(_own_attention(shape, tp))
    yield from own
    if not own:
        return
    spec, fields = own[0]
    if "num_kv_heads" in fields and fields["head_size"] % 2 == 0:
        # A draft's layer is of other heads: as large here, but no layer of the model's kind.
        other = {"num_kv_heads": 2 * fields["num_kv_heads"], "head_size": fields["head_size"] // 2}
        yield from [(spec, fields | other)] * shape.get("draft_layers", 0)
    full = [layer for layer in own if layer[0] in ("full", "mla")]
    yield from full[:1] * shape.get("mtp_layers", 0)


def _own_attention(shape: Mapping[str, Any], tp: int) -> Iterator[tuple[str, Fields]]:
    if "kv_lora_rank" in shape:
        row = {"head_size": shape["kv_lora_rank"] + shape["rope_dim"]}
        yield from [("mla", row)] * (shape.get("mla_layers") or shape["layers"])
        return
    num_full, num_sliding = _layer_counts(shape)
    heads = shape.get("kv_heads_full", shape.get("kv_heads", 2))
    if "kv_heads_per_rank" in shape:
        heads = shape["kv_heads_per_rank"] * tp
    size = shape.get("head_dim_full", shape.get("head_dim", 128))
    fields = {"num_kv_heads": heads, "head_size": size}
    yield from [("full", fields)] * num_full
    if shape.get("cross_attention"):
        yield from [("cross", fields)] * num_full
    heads = shape.get("kv_heads_sliding", shape.get("kv_heads"))
    size = shape.get("head_dim_sliding", size)
    yield from [_window(shape, num_kv_heads=heads, head_size=size)] * num_sliding


def _window(shape: Mapping[str, Any], **fields: Any) -> tuple[str, Fields]:
    if "chunked_local" in shape:
        return "chunked", {"attention_chunk_size": shape["chunked_local"], **fields}
    return "sliding", {"sliding_window": shape.get("sliding_window"), **fields}


def _layer_counts(shape: Mapping[str, Any]) -> tuple[int, int]:
    """(layers that keep all tokens, layers with a window) that store a cache of their own."""
    if "own_full" in shape:
        return shape["own_full"], shape["own_sliding"]
    if "full_layers" in shape:
        return shape["full_layers"], shape.get("sliding_layers", 0)
    if "attn_layers" in shape:
        return shape["attn_layers"], 0
    layers = shape.get("layers", shape.get("decoder_layers", 0))
    if "pattern" in shape:
        windowed, _, full = shape["pattern"].partition(" : ")
        a, b = int(windowed.split(" ")[0]), int(full.split(" ")[0])
        return layers * b // (a + b), layers * a // (a + b)
    return layers, 0


def states(shape: Mapping[str, Any]) -> Iterator[tuple[str, Fields]]:
    """What the record says of its states, of the whole model."""
    columns = shape.get("conv_kernel", KERNEL) - 1
    if "gdn_v_heads" in shape:
        v, k, dim = shape["gdn_v_heads"], shape["gdn_k_heads"], shape["gdn_head_dim"]
        shapes = {"conv": [(2 * k + v) * dim, columns], "ssm": [v, dim, dim]}
        yield from [_state("gdn_attention", shapes)] * shape["gdn_layers"]
    elif "kda_heads" in shape:
        heads, dim = shape["kda_heads"], shape["kda_head_dim"]
        shapes = {"conv": [3 * heads * dim, columns], "ssm": [heads, dim, dim]}
        yield from [_state("gdn_attention", shapes, ssm="float32")] * shape["kda_layers"]
    elif "mamba_heads" in shape:
        heads, dim, state = shape["mamba_heads"], shape["mamba_head_dim"], shape["ssm_state"]
        shapes = mamba2_states(heads, dim, state, shape["n_groups"], columns + 1)
        mixer = _state("mamba2", shapes, num_groups=shape["n_groups"])
        yield from [mixer] * shape["mamba2_layers"]
    elif has_states(shape):  # sizes unknown: a stand-in, for padding only
        shapes = {"conv": [64, columns], "ssm": [4, 16, 16]}
        yield from [_state("gdn_attention", shapes)] * shape["gdn_layers"]


def _state(
    mamba_type: str, shapes: Mapping[str, list[int]], ssm: str | None = None, **more: int
) -> tuple[str, Fields]:
    listed: list[Fields] = [{"name": name, "shape": shape} for name, shape in shapes.items()]
    if ssm is not None:
        listed[-1]["dtype"] = ssm
    return "mamba", {"mamba_type": mamba_type, "states": listed, **more}
