"""A prepared request -> what an engine that is planned on its own is asked."""

from __future__ import annotations

from kvpipe.answers.card_room import check_card
from kvpipe.answers.served_name import served_name
from kvpipe.answers.stage_weights import stage_weights
from kvpipe.engines.planned import Card, End, Question, RankQuestion
from kvpipe.errors import ConfigError, Problem
from kvpipe.pipeline import Prepared, profiling_request
from kvpipe.stages.profiling.base import MemoryItem, ProfilingRequest, device_total
from kvpipe.stages.profiling.estimate import is_packed, loading
from kvpipe.stages.profiling.estimates import Estimate, activations, context


def question_of(prepared: Prepared, end: End = "best") -> Question:
    """end: of the memory, where what stands beside the cache is estimated. ConfigError on a CPU,
    unless the bytes are set by hand; DoesNotFit where the card has no room for both these and the
    weights."""
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
    check_card(prepared, end)
    request = profiling_request(prepared)
    scheduler = config.scheduler
    return Question(
        model=resolved.model,
        served_name=served_name(prepared),
        served_dtype=resolved.served_dtype,
        cache_dtype=resolved.cache_dtype,
        ranks=_ranks(prepared, request, end),
        card=_card(request, end),
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
        end=end,
        activations=lambda tokens, requests: _activations(request, end, tokens, requests),
    )


def _ranks(prepared: Prepared, request: ProfilingRequest, end: End) -> tuple[RankQuestion, ...]:
    """The first rank of each stage: those of one stage are alike."""
    if prepared.config.cache.kv_cache_memory_bytes is not None:
        none = MemoryItem(name="weights", num_bytes=0, how="set", source="not looked at")
        weights = dict.fromkeys(range(request.parallel.pp), none)
    else:
        weights = stage_weights(prepared)
    return tuple(
        RankQuestion(
            layers=rank.layers,
            weight_bytes=_loaded(weights[rank.pp_rank], request, end),
            weights_how=weights[rank.pp_rank].how,
            weights_source=weights[rank.pp_rank].source,
        )
        for rank in prepared.resolved.ranks
        if rank.tp_rank == 0
    )


def _loaded(weights: MemoryItem, request: ProfilingRequest, end: End) -> int:
    """The weights' bytes; where the memory is the least it can be, with what loading makes of
    them."""
    if end == "low" and weights.how != "set":
        return weights.at_most + loading(weights, request).at_most
    return weights.at_least if end == "high" else weights.num_bytes


def _of(estimate: Estimate, end: End) -> int:
    """What an estimate is where the memory left beside it is at that end."""
    return {"low": estimate.high, "best": estimate.best, "high": estimate.low}[end]


def _card(request: ProfilingRequest, end: End) -> Card:
    total = device_total(request.device)
    taken = 0
    if request.device.type != "cpu":
        taken = _of(context(request.parallel.tp, request.device.total_bytes), end)
    return Card(
        name=request.device.name,
        type=request.device.type,
        total_bytes=total.num_bytes,
        context_bytes=taken,
        how=total.how,
        compute_capability=request.device.compute_capability,
    )


def _activations(request: ProfilingRequest, end: End, tokens: int, requests: int) -> int:
    found = activations(
        request.model,
        batched_tokens=tokens,
        max_num_seqs=requests,
        tp=request.parallel.tp,
        is_packed=is_packed(request.model, request.served_dtype),
    )
    return _of(found, end)
