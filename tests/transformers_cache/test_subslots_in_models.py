"""Models whose attention lies in sub-slots generate what they generate with transformers' own."""

from __future__ import annotations

import pytest
from equality import assert_equal, generate, reference

import kvpipe
from kvpipe.integrations.transformers import bind, layers_of
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.slots.options import SlotOptions

CASES = [
    ("jamba", 8, "gather"),
    ("jamba", 3, "direct"),
    ("bamba", 3, "gather"),
    ("qwen3_next", 8, "direct"),
    ("nemotron_h", 8, "gather"),
    ("zamba2", 8, "direct"),
]


@pytest.mark.full
@pytest.mark.parametrize(("family", "block_size", "mode"), CASES)
def test_tokens_and_logits_are_those_of_transformers(
    family: str, block_size: int, mode: str
) -> None:
    case = reference(family)
    limits = RequestLimits(max_model_len=256, max_num_batched_tokens=256)
    plan = kvpipe.plan(
        layers_of(case.model, block_size), limits, 8 << 20, slots=SlotOptions(subslots=True)
    )
    [group] = [group for group in plan.groups if group.blocks_per_slot > 1]
    assert group.block_spec.block_size == block_size
    cache = bind(case.model, plan, shuffle=3, mode=mode)
    try:
        assert_equal(case.output, generate(case.model, case.inputs, cache))
        cache.release()
        manager = cache.bound.manager
        assert manager.pool.stats().in_use == 0 and not any(manager.num_holes)
    finally:
        cache.bound.unbind()
