"""The bound of the default engine is the worst that the block manager reaches: not a block more.

A small model checker drives one request through the real manager along every schedule, every chunk
with every room for drafts, and looks at the most blocks that it ever holds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from block_models import config_of
from spec_walk import MODES, called

from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.plugins import REGISTRIES, SPECS
from kvpipe.specs.base import CacheLayer, KVCacheSpec, RequestLimits, cdiv
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.specs.sliding import SlidingWindowSpec
from kvpipe.stages.grouping.planning import plan

HEADS: dict[str, Any] = {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}


def most_held(spec: KVCacheSpec, limits: RequestLimits) -> int:
    """Blocks of one request at the worst moment of any schedule. Each state that a schedule may
    reach is a live request; a step from it is taken by a fork of it."""
    manager = BlockManager(config_of([spec], 20_000), limits, max_num_requests=2000)
    manager.add_request(0)
    todo, names, seen, most = [0], count(1), {_state(manager, 0)}, 0
    while todo:
        before = todo.pop()
        left = limits.max_model_len - manager.num_tokens(before)
        for new in range(1, min(limits.tokens_in_flight, left) + 1):
            for drafts in range(limits.tokens_in_flight - new + 1):
                after = next(names)
                manager.fork(before, after)
                manager.allocate(after, new, drafts)
                most = max(most, len(manager.block_ids(after, 0)))
                if (state := _state(manager, after)) in seen:
                    manager.free(after)
                else:
                    seen.add(state)
                    todo.append(after)
    return most


def _state(manager: BlockManager, request: int) -> tuple[int, tuple[int, ...]]:
    row = manager.block_table(0, [request])[0]
    return manager.num_tokens(request), tuple((row > 0).nonzero()[0].tolist())


def random_case(kind: str, draw: Random, most_blocks: int) -> tuple[KVCacheSpec, RequestLimits]:
    """A spec of that kind with sizes of its own, and limits of at most so many blocks."""
    example = draw.choice(SPECS.get(kind).examples())
    block = draw.randint(1, 4)
    sizes = {name: draw.randint(1, 9) for name in (example.bound.sizes if example.bound else ())}
    spec = replace(example, block_size=block, page_size_padded=None, **sizes)
    limits = RequestLimits(
        max_model_len=draw.randint(1, most_blocks * block),
        max_num_batched_tokens=draw.randint(1, 5),
        max_encoder_tokens=draw.randint(0, 9),
        mamba_cache_mode=draw.choice(MODES),
    )
    return spec, limits


def agree(spec: KVCacheSpec, limits: RequestLimits) -> None:
    assert spec.peak_blocks(limits) == most_held(spec, limits), f"{called(spec)} {limits}"


@pytest.mark.parametrize("kind", SPECS.names())
def test_the_bound_is_what_some_schedule_reaches(kind: str) -> None:
    draw = Random(kind)
    for _ in range(3):
        agree(*random_case(kind, draw, 4))


@pytest.mark.full
@pytest.mark.parametrize("kind", SPECS.names())
def test_the_bound_is_what_some_schedule_reaches_in_twelve_blocks(kind: str) -> None:
    draw = Random(f"{kind} of twelve")
    for _ in range(25):
        agree(*random_case(kind, draw, 12))


# --- what was wrong once --------------------------------------------------------------------------
def layers_of(spec: KVCacheSpec) -> list[CacheLayer]:
    return [CacheLayer(name=f"layers.{i}", spec=spec) for i in range(32)]


def test_a_window_fits_wherever_full_attention_fits() -> None:
    """4,096 tokens in 256 blocks: nothing has left the window, so nothing starts inside a block."""
    limits = RequestLimits(max_model_len=4096, max_num_batched_tokens=4096)
    for spec in (
        SlidingWindowSpec(block_size=16, sliding_window=4096, **HEADS),
        FullAttentionSpec(block_size=16, **HEADS),
    ):
        made = plan(layers_of(spec), limits, 538968064)
        assert made.capacity is not None
        assert (made.capacity.usable_blocks, made.capacity.requests_at_peak) == (256, 1)


def test_the_capacity_of_short_requests_is_what_the_manager_takes() -> None:
    """17 tokens lie in two blocks of 16, whatever the window."""
    limits = RequestLimits(max_model_len=17, max_num_batched_tokens=512)
    spec = SlidingWindowSpec(block_size=16, sliding_window=1000, **HEADS)
    made = plan(layers_of(spec), limits, 98673075)
    assert made.capacity is not None and made.capacity.requests_at_peak == 23
    manager = BlockManager.from_plan(made)
    for i in range(23):
        manager.add_request(i)
        manager.allocate(i, 17)
    manager.add_request("one more")
    with pytest.raises(OutOfBlocks):
        manager.allocate("one more", 17)


@pytest.mark.parametrize("engine", ["vllm_0_17", "vllm_0_33"])
def test_engines_keep_their_own_bound(engine: str) -> None:
    rules = REGISTRIES["engine"].get(engine)
    assert rules.request_bound == "max_blocks"
    for window, batch, length in ((1000, 512, 17), (4096, 4096, 4096), (33, 5, 500)):
        spec = SlidingWindowSpec(block_size=16, sliding_window=window, **HEADS)
        limits = RequestLimits(max_model_len=length, max_num_batched_tokens=batch)
        assert spec.max_blocks(limits) == cdiv(min(window - 1 + batch, length), 16) + 1
