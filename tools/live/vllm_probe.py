"""Runs inside a vLLM environment: starts engines on cases and says what each one planned.

python vllm_probe.py CASES ANSWERS, as probing.py says.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import time
import traceback
from typing import Any

from probing import answer_all, captured, one_line

Json = dict[str, Any]


def main(cases: str, answers: str) -> int:
    look_at_models_here()
    return answer_all(cases, answers, answer)


def look_at_models_here() -> None:
    """The engine looks at a model's class in a process of its own, half a minute each: a CPU build
    may do it in this one."""
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda look: look()


def answer(case: Json) -> Json:
    """started, what was planned, further plans, the engine's own text, seconds."""
    start = time.perf_counter()
    found: Json
    with captured() as log:
        try:
            found = started(case)
        except BaseException as error:  # an engine may leave by SystemExit
            traceback.print_exc()
            found = {"started": False, "error": one_line(error)}
        tidy()
    text = log.read_text(errors="replace")
    log.unlink()
    return {**found, "seconds": round(time.perf_counter() - start, 1), "log": text}


def started(case: Json) -> Json:
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = engine_arguments(case)
    say(arguments)
    engine = LLMEngine.from_engine_args(arguments, usage_context=usage(case))
    core = engine.engine_core.engine_core
    config, planned = core.vllm_config, core.scheduler.kv_cache_config
    answer: Json = {"started": True, **settings(config), **of_plan(planned)}
    answer["printed"] = printed(config, planned)
    specs = core.model_executor.get_kv_cache_specs()
    least = least_memory(config, specs, case["memory_bytes"])
    around = [least - 1, least, least + least // 8]
    answer["others"] = [replanned(config, specs, memory) for memory in around if memory]
    with contextlib.suppress(Exception):
        engine.engine_core.shutdown()
    return answer


def say(arguments: Any) -> None:
    """As `vllm serve` and `LLM` do before the engine starts: their users' logs have this line."""
    from vllm.entrypoints.serve.utils.api_utils import log_non_default_args

    log_non_default_args(arguments)


def engine_arguments(case: Json) -> Any:
    """Of the engine: as they are, or read from a line of `vllm serve` by the release itself."""
    from vllm.engine.arg_utils import EngineArgs

    if "serve" not in case:
        return EngineArgs(**case["arguments"])
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    read = parser.parse_args(case["serve"])
    found = AsyncEngineArgs.from_cli_args(read)
    known = {name: getattr(found, name) for name in EngineArgs.__dataclass_fields__}
    return EngineArgs(**known)


def usage(case: Json) -> Any:
    from vllm.usage.usage_lib import UsageContext

    server = case.get("usage") == "server"
    return UsageContext.OPENAI_API_SERVER if server else UsageContext.LLM_CLASS


def settings(config: Any) -> Json:
    cache, scheduler = config.cache_config, config.scheduler_config
    layout = getattr(cache, "get_resolved_kv_cache_layout", None)
    return {
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_concurrent_batches": getattr(config, "max_concurrent_batches", None),
        "num_prefill_lookahead_tokens": getattr(config, "num_prefill_lookahead_tokens", None),
        "prefix_caching": cache.enable_prefix_caching,
        "mamba_cache_mode": getattr(cache, "mamba_cache_mode", None),
        "layout": layout().name if layout else None,
    }


def of_plan(planned: Any) -> Json:
    return {
        "num_blocks": planned.num_blocks,
        "groups": [of_group(group) for group in planned.kv_cache_groups],
        "pages": [page for tensor in planned.kv_cache_tensors for page in of_tensor(tensor)],
    }


def of_group(group: Any) -> Json:
    spec = group.kv_cache_spec
    return {
        "layers": list(group.layer_names),
        "kind": type(spec).__name__,
        "block_size": spec.block_size,
        "page_size": spec.page_size_bytes,
    }


def of_tensor(tensor: Any) -> list[Json]:
    """[layer, bytes of the tensor, offset, bytes from block to block (None: not said)] each."""
    layers = getattr(tensor, "layers", None)
    if layers is None:
        return [[name, tensor.size, 0, None] for name in tensor.shared_by]
    return [
        [name, tensor.size, tensor.offset + i * tensor.layer_stride, tensor.block_stride]
        for i, name in enumerate(layers)
    ]


def printed(config: Any, planned: Any) -> Json:
    """As the engine computes its capacity line."""
    from vllm.v1.core import kv_cache_utils as utils

    if not planned.kv_cache_groups:
        return {"tokens": None, "concurrency": None}
    capacity = getattr(utils, "get_kv_cache_capacity", None)
    if capacity is None:
        concurrency = utils.get_max_concurrency_for_kv_cache_config(config, planned)
        return {
            "tokens": int(concurrency * config.model_config.max_model_len),
            "concurrency": concurrency,
        }
    tokens, concurrency = capacity(config, planned)
    return {"tokens": tokens, "concurrency": concurrency}


def least_memory(config: Any, specs: list[Any], enough: int) -> int:
    """Bytes with which the engine's planner starts, one fewer and it refuses; 0: none do."""
    low, high = 0, enough  # low is refused
    if not replanned(config, specs, high)["started"]:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if replanned(config, specs, middle)["started"]:
            high = middle
        else:
            low = middle
    return high


def replanned(config: Any, specs: list[Any], memory: int) -> Json:
    """The engine's planner once more, with its own objects and other memory: no restart."""
    from vllm.v1.core import kv_cache_utils as utils

    config = copy.copy(config)
    config.model_config = copy.copy(config.model_config)
    config.model_config.max_model_len = config.model_config.max_model_len
    config.cache_config = copy.copy(config.cache_config)
    config.cache_config.num_gpu_blocks_override = None
    try:
        plans = utils.get_kv_cache_configs(config, copy.deepcopy(specs), [memory] * len(specs))
        planned = utils.generate_scheduler_kv_cache_config(plans)
    except Exception as error:
        return {"memory": memory, "started": False, "error": one_line(error)}
    length = config.model_config.max_model_len
    return {
        "memory": memory,
        "started": True,
        "max_model_len": length,
        "num_blocks": planned.num_blocks,
        "printed": printed(config, planned),
    }


def tidy() -> None:
    """What one engine leaves in its process, so that the next one can start in it."""
    with contextlib.suppress(Exception):
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
    gc.collect()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
