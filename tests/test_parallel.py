"""One `parallel` section: TP, PP, DP, DCP, and ranks whose memories differ."""

from __future__ import annotations

import pytest

from kvpipe.answers.advice import advise
from kvpipe.answers.serve_line import line_of
from kvpipe.errors import ConfigError
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Result, execute

GIB = 2**30


def run(*overrides: str) -> Result:
    return execute(prepared_request(["model=llama", *overrides]).prepared)


@pytest.mark.parametrize("plugin", ["utilization", "estimate"])
def test_ranks_with_different_cards_are_profiled_each_and_the_poorest_decides(plugin: str) -> None:
    asked = ["device=h100_80gb", f"profiling={plugin}", "parallel=tp2"]
    mixed = run(*asked, "parallel.rank_memory_bytes=[79GiB,39GiB]")
    totals = [rank.total.num_bytes for rank in mixed.profile.ranks]
    assert totals == [79 * GIB, 39 * GIB]
    small = run(*asked, "parallel.rank_memory_bytes=[39GiB,39GiB]")
    assert mixed.plan.num_blocks == small.plan.num_blocks
    rich, poor = mixed.plan.ranks
    assert poor.stranded_bytes == 0
    assert rich.stranded_bytes > 30 * GIB


def test_a_stage_with_fewer_layers_balances_a_smaller_card() -> None:
    asked = ["device=h100_80gb", "profiling=estimate", "parallel=pp2"]
    cards = "parallel.rank_memory_bytes=[79GiB,39GiB]"
    even = run(*asked, cards)
    uneven = run(*asked, cards, "parallel.pipeline_partition=[22,10]")
    assert uneven.plan.num_blocks > even.plan.num_blocks


def test_as_many_sizes_as_ranks_are_asked_for() -> None:
    match = r"parallel\.rank_memory_bytes: expected one size for each of 2 ranks, got 3 sizes"
    with pytest.raises(ConfigError, match=match):
        run("device=h100_80gb", "parallel=tp2", "parallel.rank_memory_bytes=[8GiB,8GiB,8GiB]")


def test_copies_change_no_ranks_plan_and_are_counted() -> None:
    asked = ["device=h100_80gb", "scheduler.max_model_len=8192", "engine=vllm_0_33"]
    one, four = run(*asked), run(*asked, "parallel.data_parallel_size=4")
    assert four.plan == one.plan
    cap = one.plan.capacity
    assert cap is not None
    texts = [note.text for note in advise(four)]
    expected = f"4 copies of these ranks hold {4 * cap.requests_at_peak:,} requests of 8,192 tokens"
    assert any(text.startswith(expected) for text in texts)
    assert not any("copies" in note.text for note in advise(one))
    assert "--data-parallel-size 4" in line_of(four)


def test_context_parallel_ranks_share_the_tokens_of_a_copy() -> None:
    asked = ["model=deepseek_v3", "device=mi355x", "parallel.tensor_parallel_size=8"]
    whole = execute(prepared_request(asked).prepared).plan
    shared = execute(
        prepared_request([*asked, "parallel.decode_context_parallel_size=8"]).prepared
    ).plan
    assert whole.capacity is not None and shared.capacity is not None
    assert whole.capacity.steady_bytes == 8 * shared.capacity.steady_bytes
