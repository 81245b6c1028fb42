"""Which cache group limits a prefix hit is told as a walk over tokens finds it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from block_models import chunked, config_of, full, mamba, sliding, streaming
from replay_walk import walked_groups

import kvpipe
from kvpipe.blocks import BlockManager
from kvpipe.simulation.hits import GroupHits, summed
from kvpipe.specs.base import KVCacheSpec, RequestLimits

SETS: dict[str, list[KVCacheSpec]] = {
    "full": [full(4)],
    "full and window": [full(8), sliding(4, 10)],
    "two windows": [sliding(4, 6), full(4), sliding(4, 15)],
    "chunk and sinks": [chunked(4, 16), streaming(4, 4, 9), full(8)],
    "state": [mamba(8, "align"), full(4)],
}


@pytest.mark.parametrize("name", SETS)
def test_what_groups_have_alone_and_who_cuts_the_hit_is_what_a_walk_finds(name: str) -> None:
    draw, differed = random.Random(7), 0
    limits = RequestLimits(max_model_len=128, max_num_batched_tokens=16, mamba_cache_mode="align")
    manager = BlockManager(config_of(SETS[name], 90), limits, prefix_caching=True)
    texts = [[draw.randrange(9) for _ in range(120)] for _ in range(3)]
    for number in range(60):
        manager.begin_step()
        known = draw.choice(texts)[: draw.randrange(1, 110)]
        prompt = known + [draw.randrange(9) for _ in range(draw.randrange(1, 9))]
        hit = manager.add_request(number, prompt)
        told = manager.prefix_hits(number)
        assert [tuple(one) for one in told] == walked_groups(manager, prompt, hit)
        assert max(one.alone for one in told) - sum(one.cut for one in told) == hit
        differed += len({one.alone for one in told}) > 1
        while (rest := len(prompt) - manager.num_tokens(number)) > 0:
            manager.begin_step()
            manager.allocate(number, min(rest, 16))
        manager.free(number)
    assert differed > 3 or len(SETS[name]) == 1


def test_a_report_names_the_group_that_limits_only_where_groups_differ() -> None:
    words = ["device=h200", "backend=meta", "trace=mooncake_sample", "trace.max_requests=40"]
    more = ["cache.kv_cache_memory_bytes=20GiB", "cache.enable_prefix_caching=true"]
    told = kvpipe.replay(["model=gemma3_27b", *words, *more])
    groups = told.to_json()["prefix_groups"]
    assert len({one["hit_tokens"] for one in groups}) > 1
    assert "limits most, by" in told.text() and "(sliding)" in told.text()
    alike = kvpipe.replay(["model=llama", *words, *more])
    (only,) = alike.to_json()["prefix_groups"]
    assert only["hit_tokens"] == alike.to_json()["counts"]["hit_tokens"] and not only["cut_tokens"]
    assert "limits" not in alike.text()
    off = kvpipe.replay(["model=llama", *words, "cache.enable_prefix_caching=false"])
    assert off.to_json()["prefix_groups"] == ()


def test_servers_of_one_plan_are_summed_group_by_group() -> None:
    one = GroupHits(kind="full", layers=4, block_tokens=16, asked_tokens=9, hit_tokens=5)
    other = replace(one, kind="sliding", cut_tokens=3, cut_requests=1)
    both = summed([(one, other), (one, other), (one, one)])
    assert [(g.kind, g.asked_tokens, g.hit_tokens, g.cut_tokens, g.cut_requests) for g in both] == [
        ("full", 27, 15, 0, 0),
        ("sliding", 27, 15, 6, 2),
    ]
