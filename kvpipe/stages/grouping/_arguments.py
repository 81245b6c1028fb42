"""What is wrong with the arguments of plan(), all of it at once. A command line checks its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvpipe.engines.base import EngineRules
from kvpipe.errors import Problem, did_you_mean
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.stages.grouping._problems import some

_MOST, _MOST_BYTES = 2**31, 2**63
_MODES = ("none", "align", "all")
# The least that a limit may be; tokens, or ranks.
_LEAST = {
    "max_model_len": 1,
    "max_num_batched_tokens": 1,
    "max_encoder_tokens": 0,
    "max_concurrent_batches": 1,
    "num_lookahead_tokens": 0,
    "dcp": 1,
    "pcp": 1,
}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """As they were given, of any type; ranks: CacheLayers of each; memory: bytes of each."""

    ranks: Sequence[Sequence[Any]]
    limits: Any
    memory: Sequence[Any]
    engines: Sequence[Any]
    layout: Any
    max_num_seqs: Any
    num_gpu_blocks_override: Any

    def problems(self) -> Iterator[Problem]:
        yield from _of_layers(self.ranks)
        yield from _of_limits(self.limits)
        yield from _of_memory(self.memory, len(self.ranks))
        yield from _of_engines(self.engines)
        if self.layout is not None and self.layout not in EngineRules.LAYOUTS:
            hint = did_you_mean(str(self.layout), EngineRules.LAYOUTS)
            wanted = "an order of the axes L, B, N, H, C"
            yield Problem("placement", wanted, str(self.layout), hint)
        for key, least in (("max_num_seqs", 1), ("num_gpu_blocks_override", 0)):
            value = getattr(self, key)
            if value is not None:
                yield from _whole(key, value, least)


def listed(given: Any) -> tuple[Any, ...] | None:
    """What was given, where it is several of something; None where it is one."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else None


def _of_layers(ranks: Sequence[Sequence[Any]]) -> Iterator[Problem]:
    for rank in ranks:
        known: set[type] = set()  # kinds of specs: a look-up takes a tenth of isinstance's time
        for layer in [layer for layer in rank if not _is_layer(layer, known)][:1]:
            wanted = "CacheLayers of one rank, or a list of them for each rank"
            yield Problem("layers", wanted, repr(layer))
        if twice := _repeated([layer for layer in rank if isinstance(layer, CacheLayer)]):
            wanted = "each layer of a rank once, by a name of its own"
            yield Problem("layers", wanted, f"{some(twice)} more than once")


def _repeated(rank: Sequence[CacheLayer]) -> list[str]:
    """Names of layers that are there again, the same. Two specs of a name are told by grouping."""
    names = [layer.name for layer in rank]
    if len(set(names)) == len(names):
        return []
    first = {layer.name: layer.spec for layer in reversed(rank)}
    again = [layer.name for layer in rank if layer.spec == first[layer.name]]
    return [str(name) for name, times in Counter(again).items() if times > 1]


def _is_layer(layer: Any, known: set[type]) -> bool:
    if not isinstance(layer, CacheLayer) or not isinstance(layer.name, str):
        return False
    if type(layer.spec) not in known and not isinstance(layer.spec, KVCacheSpec):
        return False
    known.add(type(layer.spec))
    return layer.shares_with is None or isinstance(layer.shares_with, str)


def _of_limits(limits: Any) -> Iterator[Problem]:
    if not isinstance(limits, RequestLimits):
        yield Problem("limits", "RequestLimits(max_model_len=..., ...)", repr(limits))
        return
    for name, least in _LEAST.items():
        yield from _whole(f"limits.{name}", getattr(limits, name), least)
    if (mode := limits.mamba_cache_mode) not in _MODES:
        yield Problem("limits.mamba_cache_mode", f"one of {', '.join(_MODES)}", repr(mode))


def _whole(key: str, value: Any, least: int, most: int = _MOST) -> Iterator[Problem]:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < most:
        yield Problem(key, f"a whole number from {least} to {most - 1:,}", repr(value))


def _of_memory(memory: Sequence[Any], ranks: int) -> Iterator[Problem]:
    for size in memory:
        if isinstance(size, bool) or not isinstance(size, int) or not abs(size) < _MOST_BYTES:
            yield Problem("memory", 'bytes, or a size such as "30GiB"', repr(size))
    if len(memory) != ranks:
        yield Problem("memory", f"one figure for each of {ranks} ranks", f"{len(memory)}")


def _of_engines(engines: Sequence[Any]) -> Iterator[Problem]:
    for engine in engines:
        if not isinstance(engine, EngineRules):
            knob = "such as kvpipe.engines.vllm_0_33.PLUGIN"
            yield Problem("rules", "an engine's rules", repr(engine), knob)
