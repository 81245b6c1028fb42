"""Faults to inject into a bound cache, one at a time: each must change what the model generates.

A check that has never failed proves nothing. Every fault is one that a paged cache really can have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kvpipe.errors import ConfigError, Problem, did_you_mean

WINDOW_FAULT_TOKENS = 9


def inject(cache: Any, fault: str) -> None:
    """Break `cache` (what `bind` returned) in the way of FAULTS[fault].

    ConfigError for an unknown fault, or one that the model has no place for."""
    if fault not in FAULTS:
        raise ConfigError(
            Problem("binding.inject", "a fault", f"'{fault}'", did_you_mean(fault, FAULTS))
        )
    if reason := FAULTS[fault](getattr(cache, "self_attention_cache", cache)):
        raise ConfigError(Problem("binding.inject", f"a model that can have '{fault}'", reason))


def _swap(cache: Any) -> str:
    """The first and the last block id of row 0 change places between writing and reading. (Two
    full blocks would not do: attention does not care in which order it reads what it sees.)"""
    manager = cache.store.manager
    held = manager.block_table

    def swapped(group: int, requests: Any = None) -> Any:
        ids = held(group, requests).copy()
        mine = requests is None or requests[0] == cache.store.rows[0]
        filled = np.flatnonzero(ids[0] > 0)
        if mine and len(filled):
            ends = filled[[0, -1]]
            ids[0, ends] = ids[0, ends[::-1]]
        return ids

    if not _attention_layers(cache):
        return "no keys and values in blocks"
    manager.block_table = swapped
    return ""


def _lost(cache: Any) -> str:
    """The last token of row 0's prompt is not written."""
    store = cache.store
    if not _attention_layers(cache):
        return "no keys and values to write"
    slots_of = store.slots

    def losing(group: int) -> Any:
        slots, step = slots_of(group), store.step
        last = step.num_columns - int(step.pads[0]) - 1
        if store.seen == 0 and last >= 0:
            slots = slots.clone()
            slots[last] = -1
        return slots

    store.slots = losing
    return ""


def _alias(cache: Any) -> str:
    """Two layers use the same pages."""
    attention = _attention_layers(cache)
    for i, first in enumerate(attention):
        for second in attention[i + 1 :]:
            if [v.shape for v in first.arrays.views] == [v.shape for v in second.arrays.views]:
                second.arrays = first.arrays
                return ""
    states = [layer for layer in cache.layers if hasattr(layer, "conv_states")]
    if len(states) < 2:
        return "one layer that stores anything"
    for name in ("conv_states", "recurrent_states"):
        first, second = getattr(states[0], name), getattr(states[1], name)
        second.pages, second.group = first.pages, first.group
    return ""


def _window(cache: Any) -> str:
    """Windows are 9 tokens too short: the oldest tokens that a query sees read as zeros."""
    windowed = [layer for layer in _attention_layers(cache) if layer.window is not None]
    if not windowed:
        return "full attention only"
    for layer in windowed:
        layer.read = _forgetful(layer, layer.read)
    spans = cache.store.span

    def shorter(layer: Any, row: int) -> Any:
        span = spans(layer, row)
        if layer.window is None or span.column + span.first == 0:
            return span
        cut = min(WINDOW_FAULT_TOKENS, max(0, span.stop - span.first - 1))
        return replace(span, first=span.first + cut, column=span.column + cut)

    cache.store.span = shorter
    return ""


def _forgetful(layer: Any, read: Callable[[int, int], tuple[Any, Any]]) -> Any:
    def reading(first: int, stop: int) -> tuple[Any, Any]:
        keys, values = read(first, stop)
        if first:
            keys[:, :, :WINDOW_FAULT_TOKENS] = 0
            values[:, :, :WINDOW_FAULT_TOKENS] = 0
        return keys, values

    return reading


def _state(cache: Any) -> str:
    """States that the model updated in place are not written back."""
    states = [layer for layer in cache.layers if hasattr(layer, "conv_states")]
    if not states:
        return "no states"
    for layer in states:
        for tensors in (layer.conv_states, layer.recurrent_states):
            tensors.may_alias = False
            tensors.flush = tensors.scratch.clear
    return ""


def _attention_layers(cache: Any) -> list[Any]:
    return [layer for layer in cache.layers if hasattr(layer, "arrays")]


FAULTS: dict[str, Callable[[Any], str]] = {
    "swap": _swap,
    "lost": _lost,
    "alias": _alias,
    "window": _window,
    "state": _state,
}
