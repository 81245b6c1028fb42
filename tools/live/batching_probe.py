"""Runs where transformers is: continuous batching on a CPU, and what it made of its memory.

python batching_probe.py CASES ANSWERS, as probing.py says. The memory of a case stands in for what
the machine has free: all that follows is the engine's own.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from probing import answer_all, one_line

Json = dict[str, Any]


def main(cases: str, answers: str) -> int:
    import torch

    torch.set_num_threads(1)
    return answer_all(cases, answers, answer)


def answer(case: Json) -> Json:
    try:
        return started(case)
    except Exception as error:
        return {"started": False, "error": one_line(error), "others": []}


def started(case: Json) -> Json:
    """A batch of prompts is generated; the cache that was made for it is looked at. generated:
    whether all tokens came. (A cache is made, too, for models that it then cannot run.)"""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(case["folder"])
    model = AutoModelForCausalLM.from_config(
        config, dtype=case["dtype"], attn_implementation=case["attention"]
    ).eval()
    asked = GenerationConfig(max_new_tokens=case["new"], do_sample=False, eos_token_id=-1)
    made: list[Any] = []
    with _watched(case["memory_bytes"], made):
        found = model.generate_batch(
            inputs=prompts(case["lengths"]),
            generation_config=asked,
            continuous_batching_config=ContinuousBatchingConfig(**case["settings"]),
            warmup=False,
        )
        if not made:
            raise RuntimeError("no cache was made")
        cache, handler, batching = made[0]
        finished = [len(one.generated_tokens) for one in found.values()]
        return {
            "started": True,
            "generated": finished == [case["new"]] * len(case["lengths"]),
            **of_cache(cache),
            "max_requests": min(batching.max_requests_per_batch, cache.max_batch_tokens),
            "storable": storable(cache, case["request_len"]),
            "others": others(handler, case["memory_bytes"]),
        }


def prompts(lengths: list[int]) -> list[list[int]]:
    draw = Random(0)
    return [[draw.randrange(3, 500) for _ in range(length)] for length in lengths]


@contextmanager
def _watched(memory: int, made: list[Any]) -> Iterator[None]:
    """memory: bytes that the machine is said to have free. made: (cache, how its sizer was called,
    the settings as the engine completed them) of every cache."""
    from transformers.generation.continuous_batching import cache as module

    kept = module.get_device_and_memory_breakdown, module.PagedAttentionMemoryHandler
    handled: list[Json] = []

    class Handler(kept[1]):  # type: ignore[misc,valid-type]
        def __init__(self, **known: Any) -> None:
            # The engine completes the settings later with what was found: a copy of them as asked.
            handled.append({**known, "cb_config": copy.deepcopy(known["cb_config"])})
            super().__init__(**known)

    init = module.PagedAttentionCache.__init__

    def initialised(self: Any, config: Any, batching: Any, *rest: Any, **more: Any) -> None:
        init(self, config, batching, *rest, **more)
        made.append((self, handled[-1], batching))

    def keyed(self: Any, *rest: Any, **more: Any) -> None:
        initialised(self, more.pop("config"), more.pop("continuous_batching_config"), **more)

    _free(module, memory)
    module.PagedAttentionMemoryHandler = Handler
    module.PagedAttentionCache.__init__ = keyed
    try:
        yield
    finally:
        module.get_device_and_memory_breakdown, module.PagedAttentionMemoryHandler = kept
        module.PagedAttentionCache.__init__ = init


def _free(module: Any, memory: int) -> None:
    import torch

    module.get_device_and_memory_breakdown = lambda: (torch.device("cpu"), memory, 0, 0)


def of_cache(cache: Any) -> Json:
    return {
        "sectors": cache.num_sectors,
        "sector_bytes": cache.bytes_per_sector,
        "pool_bytes": cache.cache_tensor.numel(),
        "whole_model_blocks": cache.num_blocks,
        "batch_tokens": cache.max_batch_tokens,
        "types": {
            name.removesuffix("_attention"): {
                "layers": list(one.layer_indices),
                "blocks_per_sector": one.blocks_per_sector,
            }
            for name, one in cache.cache_allocators.items()
        },
    }


def storable(cache: Any, length: int) -> int:
    """Requests of so many tokens that find their blocks in an empty cache, by its own count."""
    cache.evict_cached_blocks()
    cache.pool.try_to_free_sectors()
    need = {
        name: one.needs_new_blocks("nobody", 0, length)
        for name, one in cache.cache_allocators.items()
    }
    return int(cache.count_storable_requests([need] * 4096))


def others(known: Json, enough: int) -> list[Json]:
    """Its own sizer with other memory: one byte less than it starts with, that, an eighth more."""
    low, high = 0, enough
    while high - low > 1:
        middle = (low + high) // 2
        if resized(known, middle)["started"]:
            high = middle
        else:
            low = middle
    return [resized(known, memory) for memory in (high - 1, high, high + high // 8)]


def resized(known: Json, memory: int) -> Json:
    from transformers.generation.continuous_batching import cache as module

    _free(module, memory)
    try:
        tokens, sectors = module.PagedAttentionMemoryHandler(
            **known
        ).infer_max_batch_tokens_and_num_sectors()
    except (ValueError, MemoryError) as error:
        return {"memory": memory, "started": False, "error": str(error)}
    return {"memory": memory, "started": True, "sectors": sectors, "batch_tokens": tokens}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
