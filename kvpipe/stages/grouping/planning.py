"""plan(): layers, limits and memory in, Plan out. No config files, no device, no torch.

>>> from kvpipe.stages.grouping.planning import plan
>>> from kvpipe.specs.base import CacheLayer, RequestLimits
>>> from kvpipe.specs.full import FullAttentionSpec
>>> spec = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
>>> layers = [CacheLayer(name=f"model.layers.{i}.self_attn.attn", spec=spec) for i in range(32)]
>>> limits = RequestLimits(max_model_len=8176, max_num_batched_tokens=2048)
>>> plan(layers, limits, 2**30).num_blocks
512
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from kvpipe.cache.plan import Plan
from kvpipe.engines.base import EngineRules
from kvpipe.engines.kvpipe import PLUGIN as KVPIPE
from kvpipe.engines.vllm_0_17 import PLUGIN as VLLM_0_17
from kvpipe.engines.vllm_0_33 import PLUGIN as VLLM_0_33
from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.hybrid import make_plan
from kvpipe.stages.grouping.slots.options import SlotOptions
from kvpipe.text.quantities import parse_size

COMPARED = (VLLM_0_17, VLLM_0_33)
DEFAULT_SLOTS = SlotOptions()


def plan(
    layers: Sequence[CacheLayer] | Sequence[Sequence[CacheLayer]],
    limits: RequestLimits,
    memory: int | str | Sequence[int | str],
    *,
    rules: EngineRules = KVPIPE,
    fit: bool = False,
    disable_hybrid_kv_cache_manager: bool = False,
    num_gpu_blocks_override: int | None = None,
    kv_cache_layout: str | None = None,
    max_num_seqs: int | None = None,
    compared: Sequence[EngineRules] = COMPARED,
    slots: SlotOptions = DEFAULT_SLOTS,
    prefix_caching: bool = True,
    scratch: bool = False,
) -> Plan:
    """How `memory` bytes become blocks for these layers under an engine's rules.

    layers: CacheLayers of one rank, or a list of them for each rank. memory: bytes for the cache of
    every rank ("8GiB" too), or one figure a rank. fit: max_model_len is lowered to the longest that
    fits.
    kv_cache_layout: axes of one backing allocation, outermost first (engines that make one).
    max_num_seqs: requests the scheduler may run at once; only a note depends on it.
    compared: engines whose capacity lines stand beside the plan's own, in Plan.printed.
    slots: how equal slots are chosen (engine kvpipe). prefix_caching: requests share prefixes, so
    that block sizes are kept to a small common multiple. scratch: prefill chunks keep in scratch
    what does not survive them (engine kvpipe, without prefix caching).
    Raises ConfigError (with all that is wrong with the request) and DoesNotFit (too little memory,
    with the longest length that fits).
    """
    from kvpipe.stages.grouping._arguments import Arguments, listed  # of callers of plan() alone

    given_layers = listed(layers)  # read once: it may be an iterator
    if given_layers == ():
        wanted = "CacheLayers of one rank, or a list of them for each rank"
        knob = "[[]] is a rank that keeps no cache"
        raise ConfigError(Problem("layers", wanted, "none", knob))
    ranks = _ranks(layers if given_layers is None else given_layers)
    figures = listed(memory)
    given = tuple(map(parse_size, (memory,) * len(ranks) if figures is None else figures))
    arguments = Arguments(
        ranks=ranks,
        limits=limits,
        memory=given,
        engines=(rules, *compared),
        layout=kv_cache_layout,
        max_num_seqs=max_num_seqs,
        num_gpu_blocks_override=num_gpu_blocks_override,
    )
    if problems := list(arguments.problems()):
        raise ConfigError(problems)
    return make_plan(
        GroupingRequest(
            ranks=ranks,
            limits=limits,
            memory=given,
            rules=rules,
            fit=fit,
            disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
            num_gpu_blocks_override=num_gpu_blocks_override,
            kv_cache_layout=kv_cache_layout,
            max_num_seqs=max_num_seqs,
            compared=tuple(compared),
            slots=slots,
            may_place_slots=kv_cache_layout is None or kv_cache_layout in ("BLNHC", "BLHNC"),
            shares_prefixes=prefix_caching,
            scratch=scratch,
        )
    )


def _ranks(
    layers: Iterable[CacheLayer] | Iterable[Iterable[CacheLayer]],
) -> tuple[tuple[CacheLayer, ...], ...]:
    """One tuple of layers a rank; a flat list is one rank. What is neither is told by Arguments."""
    from kvpipe.stages.grouping._arguments import listed

    given = listed(layers)
    if given is None:
        return ((cast("CacheLayer", layers),),)
    is_flat = any(isinstance(each, CacheLayer) for each in given)
    by_rank = () if is_flat else tuple(map(listed, given))
    if not by_rank or any(rank is None for rank in by_rank):
        return (given,)
    return tuple(rank for rank in by_rank if rank is not None)
