"""Requests at random, what comes of them, and changes put into them: for tests of advice."""

from __future__ import annotations

import random
from typing import Any

from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Prepared, Result, execute
from kvpipe.text.figures import GIB

MODELS = (
    "llama", "llama3_70b", "gemma3_27b", "gpt_oss_20b", "mistral_7b", "qwen3_next", "nemotron_h",
    "jamba", "deepseek_v2_lite", "whisper_large_v3", "qwen3_30b_a3b", "mamba_2_8b", "llama4_scout",
)  # fmt: skip
DEVICES = ("rtx_3090", "h100_80gb", "l4", "a100_40gb", "h200", "t4")
ENGINES = (
    ["engine=kvpipe"],
    ["engine=vllm_0_17"],
    ["engine=vllm_0_33"],
    *(
        ["engine=vllm", f"engine.version={v}"]
        for v in ("0.6.4", "0.8.5", "0.10.2", "0.20.0", "0.21.0", "0.24.0", "0.28.0")
    ),
)


def generated(seed: int) -> list[str]:
    """One request, as words of a command line."""
    pick = random.Random(seed)
    words = [
        f"model={pick.choice(MODELS)}",
        f"device={pick.choice(DEVICES)}",
        "backend=meta",
        *pick.choice(ENGINES),
        f"parallel.tensor_parallel_size={pick.choice((1, 1, 1, 2, 4))}",
        f"scheduler.max_model_len={pick.choice(('auto', 2048, 8192, 16384, 32768))}",
        f"scheduler.max_num_seqs={pick.choice((16, 256, 1024))}",
        f"scheduler.max_num_batched_tokens={pick.choice((1024, 2048, 8192))}",
        f"cache.cache_dtype={pick.choice(('auto', 'auto', 'fp8'))}",
    ]
    memory = pick.random()
    if memory < 0.5:
        words.append(f"cache.kv_cache_memory_bytes={pick.randrange(2**24, 2**33)}")
    elif memory < 0.6:
        words.append(f"cache.num_gpu_blocks_override={pick.randrange(2, 4000)}")
        words.append("cache.kv_cache_memory_bytes=8GiB")
    else:
        words += ["profiling=estimate", f"cache.gpu_memory_utilization={pick.uniform(0.3, 0.95)}"]
        if pick.random() < 0.3:
            words.append(f"profiling.other_instances_bytes={pick.randrange(20) * GIB}")
    return words


def outcome(words: list[str]) -> tuple[Prepared, Result | DoesNotFit] | None:
    """None: the request is wrong. A plan that can run nothing does not fit."""
    try:
        prepared = prepared_request(words).prepared
    except ConfigError:
        return None
    try:
        result = execute(prepared)
    except DoesNotFit as error:
        return prepared, error
    except ConfigError:
        return None
    held = result.plan.capacity
    if held is not None and not held.requests_at_peak:
        return prepared, DoesNotFit("starts, and runs nothing")
    return prepared, result


def with_changes(words: list[str], changes: dict[str, Any]) -> list[str]:
    kept = [word for word in words if word.partition("=")[0] not in changes]
    written = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    return [*kept, *written]


PLANNED_ENGINES = ("sglang", "llama_cpp", "transformers", "tensorrt_llm")
CARDS = ("rtx_3090", "h100_80gb", "l4", "a100_40gb", "h200", "mi300x")


def generated_for_an_engine(seed: int) -> list[str]:
    """One request of an engine that is planned only."""
    pick = random.Random(seed)
    engine = pick.choice(PLANNED_ENGINES)
    words = [
        f"model={pick.choice(MODELS)}",
        f"device={pick.choice(CARDS)}",
        f"engine={engine}",
        "backend=meta",
        f"scheduler.max_model_len={pick.choice(('auto', 2048, 8192, 32768))}",
        f"scheduler.max_num_seqs={pick.choice(('auto', 16, 256, 1024))}",
        f"scheduler.max_num_batched_tokens={pick.choice(('auto', 1024, 8192))}",
    ]
    if engine != "llama_cpp":
        words.append(f"parallel.tensor_parallel_size={pick.choice((1, 1, 2, 4))}")
    if pick.random() < 0.4:
        words.append(f"cache.kv_cache_memory_bytes={pick.randrange(2**24, 2**34)}")
    if pick.random() < 0.3:
        words.append(f"want.requests={pick.choice((4, 64, 512))}")
    if engine == "sglang" and pick.random() < 0.3:
        words.append(f"engine.mem_fraction_static={pick.choice((0.3, 0.7, 0.9))}")
    return words


def generated_line(seed: int) -> str:
    """A server's command as somebody pastes it, with flags that kvpipe does not read."""
    pick = random.Random(seed)
    models = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B", "google/gemma-3-27b-it")
    words = ["vllm", "serve", pick.choice(models)]
    words += ["--max-model-len", str(pick.choice((4096, 32768, 131072)))]
    if pick.random() < 0.5:
        words += ["--gpu-memory-utilization", f"{pick.uniform(0.5, 0.95):.2f}"]
    if pick.random() < 0.4:
        words += ["-tp", str(pick.choice((1, 2, 4)))]
    if pick.random() < 0.3:
        words += ["--max-num-seqs", str(pick.choice((8, 256, 1024)))]
    if pick.random() < 0.3:
        words += ["--max-num-batched-tokens", str(pick.choice((512, 4096, 16384)))]
    if pick.random() < 0.3:
        words += ["--kv-cache-dtype", "fp8"]
    return " ".join([*words, *pick.choice(((), ("--enforce-eager",), ("--port", "9000")))])
