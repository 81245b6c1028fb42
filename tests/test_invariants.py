"""What holds for every request, on thousands of them; what breaks is made small first.

A failure prints the smallest settings that still break: put them into `ONCE_BROKEN`.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from fuzz.invariants import ALL, OF_EACH, broken
from fuzz.minimise import shortest, smallest
from fuzz.requests import at_random, moved, planned

MOVES = 20  # memories and lengths that are tried of each request: making one ready takes longer

ONCE_BROKEN = [
    # the null block was taken off what is there, not added to what is needed
    {"model": "phi3_mini", "cache.cache_dtype": "fp8_e5m2", "memory": 25_165_824, "length": 113},
    # longest_len was the first rank's
    {
        "model": "command_r",
        "parallel.pipeline_parallel_size": 3,
        "cache.block_size": 48,
        "memory": 1_160_460_221,
        "length": 8192,
    },
    # a window's peak counted a block that nothing can be in
    {
        "model": "mistral_7b",
        "attention": "sliding",
        "cache.sliding_window": 1000,
        "memory": 98_673_075,
        "length": 17,
    },
    # the engine starts with 16 tokens and can never schedule them: longest_len said 16
    {"model": "llama3_2_1b", "layers": 8, "engine": "vllm_0_17", "memory": 467_599, "length": 1689},
    # no blocks at all are needed, and a byte of memory is
    {"model": "longformer", "memory": 1},
    # the groups of the asked length hold 13,248 tokens, and those of 13,249 hold one more
    {
        "model": "qwen3_5_122b_a10b",
        "memory": 25_192_736,
        "length": 244_771,
        "layers": 5,
        "cache.block_size": 48,
        "parallel.tensor_parallel_size": 8,
        "parallel.pipeline_parallel_size": 2,
        "scheduler.num_speculative_tokens": 5,
    },
    # equal slots of fewer tables are larger, and a request takes fewer of them
    {"model": "zamba2", "length": 321, "layers": 1, "scheduler.num_speculative_tokens": 5},
    {
        "model": "qwen3_next",
        "cache.mamba_cache_mode": "all",
        "parallel.tensor_parallel_size": 4,
        "parallel.pipeline_parallel_size": 3,
    },
]


def assert_holds(seed: Random, requests: int) -> Counter:
    """Every invariant on so many requests, each MOVES times; how many fit, do not, are wrong."""
    found: Counter = Counter()
    for _ in range(requests):
        settings = at_random(seed)
        for move in range(MOVES):
            settings |= moved(seed)
            invariants = OF_EACH if move else ALL
            if broken(settings, invariants):
                least = smallest(settings, lambda some: bool(broken(some, invariants)))  # noqa: B023
                raise AssertionError(f"{least}: {broken(least, invariants)}")
            found[type(planned(settings)).__name__] += 1
    return found


@pytest.mark.parametrize("seed", range(2, 6))
def test_every_invariant_holds_for_two_thousand_requests(seed):
    found = assert_holds(Random(seed), 25)
    assert found["Plan"] > 50 and found["DoesNotFit"] > 50, found


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_every_invariant_holds_for_twenty_thousand_requests(seed):
    assert_holds(Random(100 + seed), 50)


@pytest.mark.parametrize("settings", ONCE_BROKEN, ids=lambda s: s["model"])
def test_what_once_broke_holds(settings):
    assert broken(settings, ALL) == ""


def test_what_is_found_is_made_small():
    def fails(settings):
        return settings.get("a", 0) > 16 and "b" in settings

    assert smallest({"a": 1000, "b": 7, "c": "x"}, fails) == {"a": 17, "b": 1}
    assert shortest(["one", "a=long[[word", "two"], lambda w: any("[[" in x for x in w)) == ["[["]
