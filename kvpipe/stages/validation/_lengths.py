"""How long a request may be, and what one step may hold of it."""

from __future__ import annotations

from kvpipe.engines.base import EngineRules
from kvpipe.errors import ConfigError, Problem
from kvpipe.models.base import ModelGeometry
from kvpipe.request.config import RunConfig, SchedulerConfig
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.validation._engine_defaults import StepSizes


def max_model_len(scheduler: SchedulerConfig, model: ModelGeometry) -> int:
    """In tokens; "auto" is the model's whole context, from which a fit may come down."""
    asked = scheduler.max_model_len
    return model.context_length if asked == "auto" else asked


def request_limits(
    config: RunConfig, rules: EngineRules, model: ModelGeometry, sizes: StepSizes
) -> RequestLimits:
    """ConfigError for a length beyond the model's context."""
    scheduler = config.scheduler
    length = max_model_len(scheduler, model)
    if length > model.context_length:
        raise ConfigError(
            Problem(
                "scheduler.max_model_len",
                f"at most the model's context of {model.context_length:,} tokens",
                f"{length:,} tokens",
            )
        )
    encoder = scheduler.max_encoder_tokens
    if encoder == "auto":
        encoder = rules.encoder_tokens(model.encoder_tokens, sizes.max_num_batched_tokens)
    return RequestLimits(
        max_model_len=length,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        max_encoder_tokens=encoder,
        max_concurrent_batches=sizes.max_concurrent_batches,
        num_lookahead_tokens=scheduler.num_speculative_tokens,
        dcp=config.parallel.decode_context_parallel_size,
        mamba_cache_mode=config.cache.mamba_cache_mode,
    )
