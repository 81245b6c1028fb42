"""Which of the two ways an engine groups by: groups of equal counts, or equal slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvpipe.engines.base import EngineRules
from kvpipe.stages.grouping._groups import Grouping, group_layers
from kvpipe.stages.grouping._merging import Layers
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.union import union


def grouped(request: GroupingRequest, layers: Sequence[Layers], rules: EngineRules) -> Grouping:
    """The groups of all layers. Equal slots where the engine groups so, layers differ, and nobody
    asked for a placement in which slots cannot lie."""
    whole, off = union(layers), request.disable_hybrid_kv_cache_manager
    own = group_layers(
        whole,
        rules,
        disable_hybrid=off or not rules.groups_by_type,
        kv_cache_layout=request.axes(rules),
    )
    if rules.groups != "slots" or off or not request.may_place_slots:
        return own
    if len(own.groups) < 2:
        frees = any(group.spec.frees_tokens for group in own.groups)
        if not (frees and request.scratch):
            return own
        from kvpipe.stages.grouping.slots.kernels import are_read_whole

        return replace(own, in_slots=are_read_whole(own.groups, request.kernel_sizes))
    from kvpipe.stages.grouping._equal_slots import in_equal_slots  # layers that differ alone

    return in_equal_slots(request, layers, rules, own)
