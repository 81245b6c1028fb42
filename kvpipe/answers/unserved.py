"""Why no `vllm serve` line gives a plan, in one sentence; "" where one does."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.served_name import served_name
from kvpipe.cache.plan import Plan
from kvpipe.engines.arguments import Arguments, refused_arguments
from kvpipe.engines.base import Engine
from kvpipe.engines.serve import has_flag
from kvpipe.engines.versions import NEWEST, parse_version, written
from kvpipe.errors import printable
from kvpipe.pipeline import Prepared
from kvpipe.request.config import RunConfig
from kvpipe.stages.validation.base import ResolvedRun
from kvpipe.text.figures import size

_STATES = "--mamba-cache-mode"


def line_release(prepared: Prepared) -> str:
    """The release that a line is for: the run's, or the newest."""
    rules = prepared.config.plugins["engine"].make(Engine).rules
    return rules.version or written(NEWEST)


def why_none(prepared: Prepared, plan: Plan) -> str:
    """What a line would have to say and cannot, or what its engine would refuse."""
    if plan.capacity is None:
        return "no layer keeps a cache, so no flag says anything of this plan"
    return next(_reasons(prepared), "")


def _reasons(prepared: Prepared) -> Iterator[str]:
    config, resolved = prepared.config, prepared.resolved
    if (name := served_name(prepared)) != printable(name):
        yield "the folder's name has characters that no line shows as they are; rename it"
    yield from _what_ifs(config)
    device = resolved.device
    # On a GPU the weights are charged, and do not fit.
    if device.type == "cpu" and resolved.weight_bytes_a_rank > device.total_bytes:
        weights, memory = size(resolved.weight_bytes_a_rank), size(device.total_bytes)
        yield f"weights of {weights} do not fit in this machine's {memory}"
    # Weights that are not the model's own, nor made of them as they load, have another name.
    if resolved.model.is_converted and not resolved.model.load_as:
        kind = resolved.model.quantized_with
        yield f"name a checkpoint in {kind}, since no engine converts to it as it loads"
    version = line_release(prepared)
    keeps_states = config.cache.mamba_cache_mode != "none" and has_states(resolved)
    if keeps_states and not has_flag(_STATES, parse_version(version)):
        mode = config.cache.mamba_cache_mode
        yield f"vLLM {version} has no {_STATES}, and cache.mamba_cache_mode={mode}"
    for problem in refused_arguments(_arguments(config, resolved), version):
        yield f"vLLM {version} refuses it: {problem}"


def _what_ifs(config: RunConfig) -> Iterator[str]:
    """Attention turned into another kind, pages padded by hand, drafted tokens."""
    cache, drafted = config.cache, config.scheduler.num_speculative_tokens
    no_flag = "is a what-if, and no flag of vLLM says it"
    if config.attention.spec != "native":
        yield f"attention={config.attention.spec} {no_flag}"
    if cache.sliding_window is not None:
        yield f"cache.sliding_window={cache.sliding_window} {no_flag}"
    if cache.mamba_page_size_padded is not None:
        yield f"cache.mamba_page_size_padded={cache.mamba_page_size_padded} {no_flag}"
    if drafted > 0:
        yield (
            f"{drafted} drafted tokens take a --speculative-config, which names what drafts them"
        )


def _arguments(config: RunConfig, resolved: ResolvedRun) -> Arguments:
    return Arguments(
        max_num_batched_tokens=resolved.limits.max_num_batched_tokens,
        max_num_seqs=resolved.max_num_seqs,
        dtype=config.plugins["model"].options.dtype,
        compute_capability=resolved.device.compute_capability,
    )


def has_states(resolved: ResolvedRun) -> bool:
    return any(layer.spec.is_state for rank in resolved.ranks for layer in rank.layers)
