"""A finished run -> the `vllm serve` line that gives its plan (why there is none: `unserved`)."""

from __future__ import annotations

from kvpipe.answers.served_name import served_name
from kvpipe.answers.unserved import has_states, line_release, why_none
from kvpipe.cache.plan import Plan
from kvpipe.engines.arguments import OLDEST_BFLOAT16
from kvpipe.engines.base import EngineRules
from kvpipe.engines.defaults import chunked_beyond
from kvpipe.engines.serve import serve_line
from kvpipe.pipeline import Prepared, Result
from kvpipe.request.config import RunConfig
from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.scaled_rows import SCALED_ROWS
from kvpipe.stages.validation.base import ResolvedRun

_WORDS = ("fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", *SCALED_ROWS)


# The release groups so many layers only with kvpipe's plug-in in it.
REGROUPED = """--additional-config '{"kvpipe": {"grouping": "optimal"}}'"""


def line_of(result: Result) -> str:
    """For the run's release, or the newest; "" where no flags say what was planned."""
    return line_for(result.prepared, result.plan)


def line_for(prepared: Prepared, plan: Plan, model: str = "") -> str:
    """The same of a plan that nothing was allocated for. model: what the line calls it."""
    config, resolved = prepared.config, prepared.resolved
    if why_none(prepared, plan):
        return ""
    version = line_release(prepared)
    model = model or served_name(prepared)
    line = serve_line(model, _settings(config, resolved, plan, version), version)
    regroups = config.plugins["engine"].make(EngineRules).layers_per_group is not None
    return f"{line} {REGROUPED}" if regroups else line


def image_of(prepared: Prepared) -> str:
    """The container that the release's makers publish, for the release that `line_for` is for."""
    return f"vllm/vllm-openai:v{line_release(prepared)}"


def _dtype(config: RunConfig, resolved: ResolvedRun) -> str:
    """float16 stands in for bfloat16 where the device has none, as the engine does for auto."""
    capability = resolved.device.compute_capability
    is_old = capability is not None and capability < OLDEST_BFLOAT16
    return "float16" if is_old and resolved.served_dtype == "bfloat16" else resolved.served_dtype


def _is_chunked(plan: Plan, version: str) -> bool:
    """Whether the release must be told to cut prompts."""
    limits = plan.limits
    return limits.max_num_batched_tokens < limits.max_model_len <= chunked_beyond(version)


def _settings(
    config: RunConfig, resolved: ResolvedRun, plan: Plan, version: str
) -> dict[str, object]:
    cache, parallel = config.cache, resolved.parallel
    states = has_states(resolved)
    mode = cache.mamba_cache_mode
    widest = max(rank.config.bytes_per_block for rank in plan.ranks)
    override = cache.num_gpu_blocks_override
    return {
        "model.dtype": _dtype(config, resolved),
        "weights": resolved.model.load_as or None,
        "parallel.tensor_parallel_size": parallel.tp,
        "parallel.pipeline_parallel_size": parallel.pp if parallel.pp > 1 else None,
        "parallel.pipeline_partition": config.parallel.pipeline_partition,
        "scheduler.chunked_prefill": _is_chunked(plan, version),
        "parallel.decode_context_parallel_size": parallel.dcp if parallel.dcp > 1 else None,
        "parallel.data_parallel_size": parallel.dp if parallel.dp > 1 else None,
        "parallel.enable_expert_parallel": parallel.expert_parallel,
        "cache.cache_dtype": resolved.cache_dtype if resolved.cache_dtype in _WORDS else None,
        "cache.mamba_cache_dtype": _set(cache.mamba_cache_dtype),
        "cache.mamba_ssm_cache_dtype": _set(cache.mamba_ssm_cache_dtype),
        "cache.mamba_cache_mode": mode if states and mode != "none" else None,
        "cache.block_size": _block_size(config, resolved),
        # The bytes of all blocks: enough for each rank's, and for no block more.
        "cache.kv_cache_memory_bytes": plan.num_blocks * widest if override is None else None,
        "cache.num_blocks": plan.num_blocks,
        "cache.num_gpu_blocks_override": override,
        "scheduler.max_model_len": plan.limits.max_model_len,
        "scheduler.max_num_seqs": resolved.max_num_seqs,
        "scheduler.max_num_batched_tokens": plan.limits.max_num_batched_tokens,
        "cache.enable_prefix_caching": _prefix_caching(config, states),
        "cache.disable_hybrid_kv_cache_manager": cache.disable_hybrid_kv_cache_manager,
    }


def _set(word: str) -> str | None:
    return None if word == "auto" else word


def _prefix_caching(config: RunConfig, states: bool) -> bool | None:
    """Said where it decides what a request holds: kept states, or off."""
    if states:
        return config.cache.mamba_cache_mode != "none"
    return None if config.cache.enable_prefix_caching else False


def _attention(resolved: ResolvedRun) -> list[KVCacheSpec]:
    return [
        layer.spec for rank in resolved.ranks for layer in rank.layers if not layer.spec.is_state
    ]


def _block_size(config: RunConfig, resolved: ResolvedRun) -> int | None:
    """What was set, or what attention layers got; not said beside states, which decide it."""
    if config.cache.block_size != "auto":
        return config.cache.block_size
    sizes = {spec.block_size for spec in _attention(resolved)}
    return sizes.pop() if len(sizes) == 1 and not has_states(resolved) else None
