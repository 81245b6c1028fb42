"""Decoders that run some of their layers again and again, each pass with K/V of its own.

Dory (input, recurrent and output layers), Inkling 2 with loops. The copies follow the layers they
copy: a pipeline stage that has the layer has its passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, unreadable
from kvpipe.models.families.caches import standard_caches
from kvpipe.models.families.delta import inkling_caches


def passes(caches: list[CacheGeometry], looped: range, times: int) -> Iterator[CacheGeometry]:
    """Every cache, and those of the looped layers `times` times."""
    for cache in caches:
        yield cache
        for again in range(1, times if cache.layer in looped else 1):
            yield replace(cache, name=f"{cache.name}.pass{again}")


# --- Dory ----------------------------------------------------------------------------------------
_HALVED = ("num_hidden_layers", "n_input_layers", "n_recurrent_layers", "n_output_layers")


def dory_config(config: Config) -> Config:
    """Published files count attention and MLP as layers of their own, and list both."""
    kinds = config.words("layer_types")
    if kinds is None or "mlp" not in kinds:
        return config
    halves = {key: config.number(key) // 2 for key in _HALVED if config.number(key)}
    return config.having(layer_types=list(kinds[::2]), **halves)


def dory_looped(config: Config) -> range:
    """The recurrent layers; without their number, all between the others."""
    layers, first = config.num_layers, config.number("n_input_layers")
    last = layers - config.number("n_output_layers")
    if config.number("n_recurrent_layers", last - first) != last - first or last < first:
        raise unreadable("n_recurrent_layers", f"{layers} layers with those around them", last)
    return range(first, last)


def dory_caches(config: Config) -> list[CacheGeometry]:
    config = dory_config(config)
    mode = config.word("recurrent_kv_cache_mode", "per_loop")
    if mode not in ("per_loop", "last_loop"):
        raise unreadable("recurrent_kv_cache_mode", "per_loop or last_loop", f"'{mode}'")
    times = config.count("n_recurrent_loops") if mode == "per_loop" else 1
    return list(passes(standard_caches(config), dory_looped(config), times))


# --- Inkling 2 -----------------------------------------------------------------------------------
def inkling_loop_caches(config: Config) -> list[CacheGeometry]:
    """K/V and convolutions of every pass. loop_config, where a file has it, says the same."""
    own = config.section("loop_config")
    first = own.number("core_start", config.number("loop_layer_index_start"))
    end = own.number("core_end", config.number("loop_layer_index_end"))
    times = own.count("num_passes", config.count("loop_num_passes"))
    if not 0 < first <= end <= config.num_layers:
        raise unreadable("loop_layer_index_end", f"{first} to {config.num_layers}", end)
    return list(passes(inkling_caches(config), range(first, end), times))


FAMILIES = {
    "dory": Family(caches=dory_caches, num_layers=lambda config: dory_config(config).num_layers),
    "inkling2_loop_text": Family(caches=inkling_loop_caches),
}
