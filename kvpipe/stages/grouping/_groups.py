"""Layers -> groups: which layers share a block table. The order of the questions is the rule."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.cache.plan import KVCacheGroupSpec, Padding, SlotFacts
from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping._merging import Layers, distinct, one_group, same_type
from kvpipe.stages.grouping._problems import HYBRID, refuse, some


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """slots: what is known where equal slots were looked for. in_slots: whether blocks are slots,
    in which pages of any size lie side by side."""

    groups: tuple[KVCacheGroupSpec, ...]
    padding: tuple[Padding, ...] = ()
    slots: SlotFacts | None = None
    in_slots: bool = False


def group_layers(
    layers: Layers, rules: EngineRules, *, disable_hybrid: bool, kv_cache_layout: str
) -> Grouping:
    """The groups of all layers, the same on every rank."""
    if not layers:
        return Grouping(groups=())
    _check_encoder_only(layers, rules)
    _check_holes(layers, rules)
    _check_compressed(layers, rules)
    if spec := one_group(layers, rules):
        return _single(layers, spec)
    if disable_hybrid:
        return _without_hybrid(layers, rules)
    return _of_several_kinds(layers, rules, kv_cache_layout)


def _of_several_kinds(layers: Layers, rules: EngineRules, kv_cache_layout: str) -> Grouping:
    from kvpipe.stages.grouping._equal_groups import equal_groups  # layers that differ alone
    from kvpipe.stages.grouping._packing import packed_groups
    from kvpipe.stages.grouping._unifying import page_sizes, unified, unpaddable

    if rules.packed_groups and kv_cache_layout[0] == "B" and len(page_sizes(layers)) > 1:
        return Grouping(groups=packed_groups(layers, rules))
    if unpaddable(layers, rules) and (single := _promoted_instead(layers, rules)):
        return single
    groups, padding = equal_groups(unified(layers, rules), rules)
    return Grouping(groups=groups, padding=padding)


def _single(layers: Layers, spec: KVCacheSpec) -> Grouping:
    return Grouping(groups=(KVCacheGroupSpec(layer_names=tuple(layers), spec=spec),))


def _check_encoder_only(layers: Layers, rules: EngineRules) -> None:
    if rules.encoder_only != "refused":
        return
    found = [name for name, spec in layers.items() if not spec.holds_blocks]
    if found:
        raise refuse(
            "engine.name",
            f"an engine that plans encoder-only layers ({rules.name} does not)",
            some(found),
            "set engine=kvpipe",
            reference="ValueError",
        )


def _check_holes(layers: Layers, rules: EngineRules) -> None:
    holed = {id(spec) for spec in distinct(layers.values()) if spec.leaves_a_hole}
    if rules.holes == "refused" and holed:
        raise refuse(
            "engine.name",
            f"an engine whose caches may have a hole (those of {rules.name} have none)",
            some(name for name, spec in layers.items() if id(spec) in holed),
            "set engine=kvpipe",
            reference="NotImplementedError",
        )


def _check_compressed(layers: Layers, rules: EngineRules) -> None:
    """Releases whose planner was not run for such a model may plan it by rules of their own."""
    if not rules.version or rules.compressed_rows:
        return
    found = [
        name
        for name, spec in layers.items()
        if any(array.tokens_per_row > 1 for array in spec.page_arrays())
    ]
    if found:
        raise refuse(
            "engine.name",
            "an engine known to plan rows that stand for several tokens beside others, as vLLM "
            f"from 0.33.0 on (of {rules.name} it is not known)",
            some(found),
            "set engine=vllm_0_33 or engine=kvpipe",
            reference="ValueError",
        )


def _without_hybrid(layers: Layers, rules: EngineRules) -> Grouping:
    """Hybrid manager off: one group or nothing."""
    from kvpipe.stages.grouping._promotion import promoted  # layers that differ alone

    turned = promoted(layers, rules)
    if spec := one_group(turned, rules):
        return _single(turned, spec)
    kinds = ", ".join(dict.fromkeys(spec.kind for spec in distinct(turned.values())))
    raise refuse(
        HYBRID,
        "false for layers that cannot share one block table",
        f"true, with {kinds} layers of {len(distinct(turned.values()))} specs",
        reference="ValueError",
    )


def _promoted_instead(layers: Layers, rules: EngineRules) -> Grouping | None:
    """Where a page can be neither divided nor padded, plain windows are promoted: they then join
    the full layers' table, and no page needs to be unified. None where others free tokens, too."""
    from kvpipe.stages.grouping._promotion import promoted

    bounded = [spec for spec in distinct(layers.values()) if spec.frees_tokens]
    if not bounded or not all(spec.is_plain_window for spec in bounded):
        return None
    turned = promoted(layers, rules)
    spec = same_type(turned, rules)
    return _single(turned, spec) if spec else None
