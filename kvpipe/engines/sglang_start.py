"""The line that starts SGLang 0.5.23 with a plan: the sizes that decide are set, so that the pools
are the same whatever the engine measures."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from kvpipe.engines.planned import Pools, Question

_MODEL_DTYPES = {"float16": "half"}
_CACHE_DTYPES = {"fp8_e5m2": "fp8_e5m2"}  # the others are e4m3 there


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the plan was made with, beside the question. fraction: "auto" is left to the engine."""

    chunk: int
    fraction: float | str
    page: int
    window_ratio: float


def launch_line(question: Question, pools: Pools, settings: Settings) -> str:
    words = ["python", "-m", "sglang.launch_server", "--model-path", question.model_word]
    words += ["--dtype", _MODEL_DTYPES.get(question.served_dtype, question.served_dtype)]
    for name, ranks in (("tp", question.tp), ("pp", question.pp), ("dp", question.dp)):
        words += [f"--{name}-size", str(ranks)] if ranks > 1 else []
    words += ["--context-length", str(question.length)]
    if question.cache_dtype.startswith("fp8"):
        words += ["--kv-cache-dtype", _CACHE_DTYPES.get(question.cache_dtype, "fp8_e4m3")]
    if settings.fraction != "auto":
        words += ["--mem-fraction-static", str(settings.fraction)]
    words += _sizes(pools, settings)
    if question.requests is not None:
        words += ["--max-running-requests", str(question.requests)]
    words += ["--chunked-prefill-size", str(settings.chunk)]
    words += [] if question.prefix_caching else ["--disable-radix-cache"]
    return shlex.join(words)


def _sizes(pools: Pools, settings: Settings) -> list[str]:
    tokens = [pool for pool in pools.pools if pool.unit == "token"]
    states = [pool for pool in pools.pools if pool.unit == "slot"]
    words = ["--max-total-tokens", str(tokens[0].count)] if tokens else []
    words += ["--page-size", str(settings.page)] if settings.page > 1 else []
    if len(tokens) > 1:
        words += ["--swa-full-tokens-ratio", str(settings.window_ratio)]
    return words + (["--max-mamba-cache-size", str(states[0].count)] if states else [])
