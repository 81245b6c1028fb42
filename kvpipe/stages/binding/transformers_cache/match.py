"""Which cache of the plan belongs to which layer of the model, and where the two disagree.

A plan may come from `layers_of` or from an engine's reading of the same config: what counts is that
the pages hold the arrays that the model stores, for as long as it reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvpipe.cache.plan import KVCacheConfig, Plan
from kvpipe.errors import ConfigError, Problem
from kvpipe.models.probe.as_transformers import unbindable
from kvpipe.models.probe.needs import KVNeed, LayerNeeds
from kvpipe.specs.answers import held_at
from kvpipe.specs.base import KVCacheSpec, RequestLimits

ROLES = ("attention", "cross", "state")


@dataclass(frozen=True, kw_only=True)
class PlannedCache:
    """The part of a plan that one rank binds to. shared_layers: (layer, target) pairs."""

    config: KVCacheConfig
    limits: RequestLimits
    shared_layers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, plan: Plan, rank: int = 0) -> PlannedCache:
        config = plan.ranks[rank].config
        return cls(config=config, limits=plan.limits, shared_layers=plan.shared_layers)


@dataclass(frozen=True, kw_only=True)
class LayerMatch:
    """attention, cross, state: names of the plan's caches that this model layer uses."""

    needs: LayerNeeds
    attention: str | None = None
    cross: str | None = None
    state: str | None = None


def match_layers(needs: Sequence[LayerNeeds], cache: PlannedCache) -> list[LayerMatch]:
    """One a model layer; ConfigError with every layer that has no fitting cache."""
    if problems := list(disagreements(needs, cache)):
        raise ConfigError(problems)
    planned = planned_specs(cache)
    return [
        LayerMatch(
            needs=need,
            attention=_name(planned, need.index, "attention") if need.attention else None,
            cross=_name(planned, need.index, "cross") if need.cross else None,
            state=_name(planned, need.index, "state") if need.states else None,
        )
        for need in needs
    ]


def planned_specs(cache: PlannedCache) -> dict[tuple[int, str], tuple[str, KVCacheSpec]]:
    """(layer index, role) -> the plan's cache: its name and spec."""
    found = {}
    for group in cache.config.groups:
        for name in group.layer_names:
            spec = group.block_spec.of_layer(name)
            found[layer_index(name), role_of(spec, cache.limits)] = (name, spec)
    return found


def layer_index(name: str) -> int:
    """The first whole number among the dotted parts of a layer's name."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)


def role_of(spec: KVCacheSpec, limits: RequestLimits) -> str:
    """A cache that a decode step writes nothing into holds the encoder's tokens."""
    if spec.is_state:
        return "state"
    return "attention" if len(spec.written(1, 1, limits)) else "cross"


def _name(planned: dict[tuple[int, str], tuple[str, KVCacheSpec]], index: int, role: str) -> str:
    return planned[index, role][0]


# --- disagreements -----------------------------------------------------------------------------
def disagreements(needs: Sequence[LayerNeeds], cache: PlannedCache) -> Iterator[Problem]:
    """What the model keeps and the plan does not hold, layer by layer."""
    yield from unbindable(needs)
    planned = planned_specs(cache)
    for need in needs:
        wanted = {"attention": need.attention, "cross": need.cross, "state": need.states or None}
        for role, what in wanted.items():
            if what is None:
                continue
            key = f"layer {need.index} ({role})"
            if (need.index, role) not in planned:
                yield Problem(key, "a cache in the plan", "none", "plan layers_of(model)")
                continue
            name, spec = planned[need.index, role]
            if difference := arrays_differ(need, role, spec):
                model_has, plan_has = difference
                yield Problem(f"{key} {name}", model_has, plan_has, "plan layers_of(model)")
            elif role == "state" and cache.limits.mamba_cache_mode != "none":
                mode = cache.limits.mamba_cache_mode
                yield Problem(f"{key} {name}", "one running state (mode none)", f"mode {mode}")
            elif role == "attention" and (short := too_short(need.attention, spec, cache.limits)):
                yield Problem(f"{key} {name}", *short, "plan layers_of(model)")


def arrays_differ(need: LayerNeeds, role: str, spec: KVCacheSpec) -> tuple[str, str] | None:
    """(what the model stores, what the plan's page holds) where these are not the same numbers;
    storage dtypes may differ: values are converted."""
    arrays = spec.page_arrays()
    if role == "state":
        model = [f"{state.name} {list(state.shape)}" for state in need.states]
        page = [f"{array.name} {list(array.shape)}" for array in arrays]
        same = [s.shape for s in need.states] == [a.shape for a in arrays]
    else:
        kv = need.attention if role == "attention" else need.cross
        assert kv is not None
        model = [f"{kv.num_heads} heads of {kv.head_size} + {kv.head_size_v}"]
        page = [f"{arrays[0].num_heads} heads of {' + '.join(str(a.width) for a in arrays)}"]
        widths = [kv.head_size, kv.head_size_v]
        sizes = [sum(widths)] if len(arrays) == 1 else widths
        same = [(kv.num_heads, size) for size in sizes] == [(a.num_heads, a.width) for a in arrays]
    return None if same else (", ".join(model), ", ".join(page))


def too_short(
    need: KVNeed | None, spec: KVCacheSpec, limits: RequestLimits
) -> tuple[str, str] | None:
    """Whether the plan frees a block that a query of the model still reads."""
    assert need is not None
    for computed in {1, limits.max_model_len // 2, limits.max_model_len - 1}:
        first = 0
        if need.window is not None:
            first = max(0, computed - need.window + 1)
        if need.chunked and need.window is not None:
            first = computed // need.window * need.window
        held = held_at(spec, computed, 1, limits)
        # A query reads an unbroken run of tokens, up to itself.
        start = held[-1].start * spec.block_size if held else computed + 1
        if start > first:
            reach = computed - start + 1
            return f"the last {computed - first + 1} tokens", f"the last {reach}"
    return None
