"""Bytes of the model's weights on one rank."""

from __future__ import annotations

from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import RankParameters
from kvpipe.specs.base import DTYPE_BYTES, cdiv
from kvpipe.stages.profiling.base import MemoryItem, ProfilingRequest

# Of what a rank has of weights whose parts are of other widths than the mean: 0.7% off in log L18.
OFF_SHARE = 0.01


def weights(request: ProfilingRequest) -> MemoryItem:
    """Parameters x served dtype over TP x PP ranks; nothing on a CPU, where none are loaded."""
    if request.device.type == "cpu":
        return MemoryItem(name="weights", num_bytes=0, how="exact", source="none are loaded")
    model, ranks = request.model, request.parallel.tp * request.parallel.pp
    if request.shares_experts:
        return max(
            (rank_weights(stage, request) for stage in range(request.parallel.pp)),
            key=lambda item: item.num_bytes,
        )
    if model.weight_bytes is not None:
        total, source = model.weight_bytes, "the checkpoint's tensors"
    elif model.parameter_count is not None:
        total = model.parameter_count * DTYPE_BYTES[request.served_dtype]
        source = f"{model.parameter_count:,} parameters x {request.served_dtype}"
    else:
        raise ConfigError(
            Problem(
                "profiling.weights_bytes",
                f"bytes, since {model.name} does not say how many parameters it has",
                "auto",
                'set it ("16GiB"), or cache.kv_cache_memory_bytes',
            )
        )
    if ranks == 1:
        how = "estimated" if request.model.is_formula else "exact"
        return MemoryItem(name="weights", num_bytes=total, how=how, source=source)
    source += f" / {ranks} ranks (replicated parts not counted twice)"
    return MemoryItem(name="weights", num_bytes=cdiv(total, ranks), how="estimated", source=source)


def adapters(request: ProfilingRequest) -> list[MemoryItem]:
    """A LoRA that lies beside the model, as often as it may be loaded at once; else nothing.

    An engine keeps as many slots of its largest rank, and what it does not split over ranks whole.
    """
    model = request.model
    total = model.adapter_bytes * model.max_loras
    if not total or request.device.type == "cpu":
        return []
    source = f"{model.max_loras} of adapter_model.safetensors (model.max_loras)"
    return [MemoryItem(name="LoRA adapters", num_bytes=total, how="estimated", source=source)]


def rank_weights(stage: int, request: ProfilingRequest) -> MemoryItem:
    """Bytes of the weights that a rank of this stage holds."""
    model, tp, pp = request.model, request.parallel.tp, request.parallel.pp
    total = model.bytes_of_weights(request.served_dtype)
    by_rank = _by_rank(request)
    if by_rank is not None and model.parameter_count:
        first_layer = sum(request.stage_layers[:stage])
        here = range(first_layer, first_layer + request.stage_layers[stage])
        count = by_rank(request.parallel.sharing, here, stage == 0, stage == pp - 1)
        num_bytes = round(count * total / model.parameter_count)
        words = f"{count:,} of {model.parameter_count:,} parameters"
        if model.weight_bytes is not None and ((tp, pp) != (1, 1) or request.shares_experts):
            return _share(num_bytes, words)
        is_divided = tp > 1 and model.tower_parameters > 0  # how evenly is the engine's own matter
        how = "estimated" if model.is_formula or is_divided else "exact"
        return MemoryItem(name="weights", num_bytes=num_bytes, how=how, source=words)
    if not total:
        raise ConfigError(
            Problem(
                "profiling.weights_bytes",
                f"bytes, since {model.name} does not say how many parameters it has",
                "auto",
                'set it ("16GiB")',
            )
        )
    if tp * pp == 1:
        words = f"{model.parameter_count:,} parameters" if model.parameter_count else "the preset"
        how = "estimated" if model.is_formula else "exact"
        return MemoryItem(name="weights", num_bytes=total, how=how, source=words)
    embedding = model.vocab_size * model.hidden_size * DTYPE_BYTES[request.served_dtype]
    share = request.stage_layers[stage] / sum(request.stage_layers)
    mine = round((total - embedding) * share) + (embedding if stage in (0, pp - 1) else 0)
    words = f"{total:,} bytes over {tp} ranks"
    if pp > 1:
        words = f"of {total:,} bytes: this stage's layers over {tp} ranks, embeddings at the ends"
    return _share(cdiv(mine if pp > 1 else total, tp), words)


def _by_rank(request: ProfilingRequest) -> RankParameters | None:
    """What is known of each rank's own numbers. Presets are divided evenly, but for experts that
    more ranks share than the rest of the weights."""
    if not request.shares_experts:
        return request.model.rank_parameters
    from kvpipe.models.parameters import parameters_by_rank

    return parameters_by_rank(request.model)


def _share(num_bytes: int, words: str) -> MemoryItem:
    off = int(OFF_SHARE * num_bytes)
    return MemoryItem(
        name="weights",
        num_bytes=num_bytes,
        how="estimated",
        source=words,
        low_bytes=num_bytes - off,
        high_bytes=num_bytes + off,
    )
