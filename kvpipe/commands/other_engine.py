"""The log of an engine that is not vLLM: its own lines are told, and nothing is planned by rules
that are not its own. kvpipe plans these engines, but reads none of their flags.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import floor
from types import MappingProxyType

from kvpipe.commands.diagnosis import Diagnosis, of_log_alone
from kvpipe.commands.read_start import ended, engine_of
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.sglang_fraction import left_for_pools
from kvpipe.errors import ConfigError
from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.reading import read_file
from kvpipe.text.figures import GIB, count

# As a log is told -> as people write it, and the option of `engine` that plans it.
_ENGINES = MappingProxyType(
    {
        "sglang": ("SGLang", "sglang"),
        "llama.cpp": ("llama.cpp", "llama_cpp"),
        "tensorrt-llm": ("TensorRT-LLM", "tensorrt_llm"),
    }
)
_SHORT = "Not enough memory"  # SGLang, where its share leaves nothing


def log_of_another(path: str) -> EngineLog | None:
    """None: vLLM's, or no log; what is wrong with the file is told by who reads it next."""
    try:
        log = read_file(path)
    except ConfigError:
        return None
    return log if log.engine in _ENGINES else None


def of_another(log: EngineLog) -> Diagnosis:
    """Its memory, its capacity and its error, as it says them itself."""
    found = of_log_alone(log)
    troubles = (*_too_small_a_share(log), *found.troubles)
    return replace(
        found,
        about=f"the log of {ended(log)}: {_named(log)}",
        memory=(*found.memory, *_asked(log)),
        capacity=tuple(_capacity(log)),
        troubles=troubles,
    )


def _named(log: EngineLog) -> str:
    name, option = _ENGINES[log.engine]
    whose = engine_of(log).replace(log.engine, name, 1)
    model = f", {log.model}" if log.model else ""
    return (
        f"{whose}{model}. Its memory lines are read; its flags are not diagnosed "
        f"(kvpipe run engine={option} plans it)"
    )


def _asked(log: EngineLog) -> Iterator[str]:
    """Its own settings, in its own words."""
    if log.utilization is not None:
        yield f"mem_fraction_static {log.utilization:g} of what was free before loading"


def _capacity(log: EngineLog) -> Iterator[str]:
    tokens, length = log.counts.get("kv_tokens"), log.counts.get("context_len")
    users = log.counts.get("max_num_seqs")
    if log.engine == "llama.cpp" and length:
        yield f"{length:,} cells" + (f" for {count(users, 'request')} at once" if users else "")
    elif tokens and length:
        yield f"{tokens:,} tokens of cache; a request may have {length:,}"
    elif tokens:
        yield f"{tokens:,} tokens of cache"
    elif length:
        yield f"a request may have {length:,} tokens"


def _too_small_a_share(log: EngineLog) -> Iterator[Trouble]:
    """SGLang keeps a share of what was free before it loads; the weights may leave less."""
    after, weights = log.least("after_load"), log.most("weights")
    if _SHORT not in log.error or after is None or weights is None or log.utilization is None:
        return
    before = log.least("before_load")
    free = before.num_bytes if before is not None else after.num_bytes + weights.num_bytes
    left = left_for_pools(free, after.num_bytes, log.utilization)
    if left > 0:
        return
    least = floor(100 * (1 - after.num_bytes / free)) + 1
    text = (
        f"mem_fraction_static {log.utilization:g} keeps {free * (1 - log.utilization) / GIB:.2f} "
        f"GiB of the {free / GIB:.2f} that were free before loading, and the weights left "
        f"{after.num_bytes / GIB:.2f}: nothing for the cache"
    )
    if least < 100:
        room = left_for_pools(free, after.num_bytes, least / 100)
        text += (
            f". By these figures --mem-fraction-static {least / 100:.2f} is the least that leaves "
            f"any, {room / GIB:.2f} GiB"
        )
    yield Trouble(text=text, stops=True)
