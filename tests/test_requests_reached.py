"""Requests printed as decoding together: as many as the block manager gets there, none more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from block_models import chunked, full, mamba, sliding

from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.cache.plan import Plan
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits
from kvpipe.stages.grouping.planning import plan

KINDS: dict[str, tuple[Sequence[KVCacheSpec], str]] = {
    "full": ([full(4)], "none"),
    "window": ([sliding(4, 6)], "none"),
    "window of a block's end": ([sliding(4, 5)], "none"),
    "two windows": ([sliding(4, 6), sliding(4, 9)], "none"),
    "full and window": ([full(4), sliding(4, 6)], "none"),
    "full and chunks": ([full(4), chunked(4, 8)], "none"),
    "state": ([mamba(4, "none")], "none"),
    "state at the last boundary": ([mamba(4, "align")], "align"),
    "full and states at boundaries": ([full(4), *[mamba(4, "align")] * 3], "align"),
    "full and states at all": ([full(4), *[mamba(4, "all")] * 3], "all"),
}


def decoding_together(made: Plan) -> int:
    """One after the other, each token by token to max_model_len, until a block is missing."""
    manager = BlockManager.from_plan(made)
    reached = 0
    try:
        while True:
            manager.add_request(reached)
            manager.allocate(reached, 1)
            for _ in range(made.limits.max_model_len - 1):
                manager.append([reached])
            reached += 1
    except OutOfBlocks:
        return reached


@pytest.mark.parametrize(
    "length", [22, *(pytest.param(n, marks=pytest.mark.full) for n in (13, 24))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_as_many_requests_decode_together_as_are_printed(kind: str, length: int) -> None:
    specs, mode = KINDS[kind]
    limits = RequestLimits(max_model_len=length, max_num_batched_tokens=8, mamba_cache_mode=mode)
    layers = [CacheLayer(name=f"layers.{i}", spec=spec) for i, spec in enumerate(specs)]
    width = max(spec.page_size_bytes for spec in specs)
    seen = set()
    for num_blocks in range(2 + sum(spec.max_blocks(limits) for spec in specs), 60):
        made = plan(layers, limits, num_blocks * width, compared=())
        assert made.capacity is not None
        assert made.capacity.requests_steady == decoding_together(made), made.num_blocks
        seen.add(made.capacity.requests_steady)
    assert len(seen) > 1
