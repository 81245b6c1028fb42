"""A prepared request -> what an engine that is planned on its own is asked."""

from __future__ import annotations

from kvpipe.engines.planned import Card, Question, RankQuestion
from kvpipe.errors import ConfigError, Problem
from kvpipe.pipeline import Prepared, profiling_request
from kvpipe.request.confdir import shipped_option
from kvpipe.stages.profiling.base import ProfilingRequest, device_total
from kvpipe.stages.profiling.estimate import EstimateProfiling, is_packed
from kvpipe.stages.profiling.estimates import activations, context


def question_of(prepared: Prepared) -> Question:
    """ConfigError on a CPU, unless the bytes are set by hand."""
    config, resolved = prepared.config, prepared.resolved
    if resolved.device.type == "cpu" and config.cache.kv_cache_memory_bytes is None:
        raise ConfigError(
            Problem(
                "device",
                f"an accelerator for engine={config.plugins['engine'].name}",
                "cpu",
                "choose device=h100_80gb, or set cache.kv_cache_memory_bytes",
            )
        )
    request = profiling_request(prepared)
    scheduler = config.scheduler
    return Question(
        model=resolved.model,
        served_dtype=resolved.served_dtype,
        cache_dtype=resolved.cache_dtype,
        ranks=_ranks(prepared, request),
        card=_card(request),
        length=resolved.limits.max_model_len,
        tp=resolved.parallel.tp,
        pp=resolved.parallel.pp,
        dp=resolved.parallel.dp,
        requests=None if scheduler.max_num_seqs == "auto" else scheduler.max_num_seqs,
        batched_tokens=None
        if scheduler.max_num_batched_tokens == "auto"
        else scheduler.max_num_batched_tokens,
        prefix_caching=config.cache.enable_prefix_caching,
        draft_tokens=scheduler.num_speculative_tokens,
        cache_bytes=config.cache.kv_cache_memory_bytes,
        activations=lambda tokens, requests: _activations(request, tokens, requests),
    )


def _ranks(prepared: Prepared, request: ProfilingRequest) -> tuple[RankQuestion, ...]:
    """The first rank of each stage: those of one stage are alike."""
    if prepared.config.cache.kv_cache_memory_bytes is not None:
        weights = {rank.pp_rank: (0, "set", "not looked at") for rank in prepared.resolved.ranks}
    else:
        weights = _weights(prepared, request)
    return tuple(
        RankQuestion(
            layers=rank.layers,
            weight_bytes=weights[rank.pp_rank][0],
            weights_how=weights[rank.pp_rank][1],
            weights_source=weights[rank.pp_rank][2],
        )
        for rank in prepared.resolved.ranks
        if rank.tp_rank == 0
    )


def _weights(prepared: Prepared, request: ProfilingRequest) -> dict[int, tuple[int, str, str]]:
    """Stage -> bytes, how they are known, source."""
    chosen = prepared.config.plugins["profiling"]
    options = chosen.options
    if not isinstance(options, EstimateProfiling.Options):
        options = EstimateProfiling.Options(**shipped_option("profiling", "estimate"))
    estimate = EstimateProfiling(options)
    stages = range(request.parallel.pp)
    items = {stage: estimate.weights(stage, request) for stage in stages}
    return {stage: (item.num_bytes, item.how, item.source) for stage, item in items.items()}


def _card(request: ProfilingRequest) -> Card:
    total = device_total(request.device)
    taken = 0
    if request.device.type != "cpu":
        taken = context(request.parallel.tp, request.device.total_bytes).best
    return Card(
        name=request.device.name,
        type=request.device.type,
        total_bytes=total.num_bytes,
        context_bytes=taken,
        how=total.how,
        compute_capability=request.device.compute_capability,
    )


def _activations(request: ProfilingRequest, tokens: int, requests: int) -> int:
    return activations(
        request.model,
        batched_tokens=tokens,
        max_num_seqs=requests,
        tp=request.parallel.tp,
        is_packed=is_packed(request.model, request.served_dtype),
    ).best
