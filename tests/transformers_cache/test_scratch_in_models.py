"""Models whose chunks lie in scratch generate what they generate with transformers' own cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from equality import BLOCK_SIZE, NEW_TOKENS, assert_equal, generate, max_difference, reference
from tiny_models import WINDOW, prompts

import kvpipe
from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError
from kvpipe.integrations.transformers import bind, layers_of
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.slots.options import SlotOptions

FAMILIES = ("gemma3", "mistral", "gemma2", "gpt_oss", "qwen2", "llama4", "gemma3n")
LENGTHS = (90, 31, 64)
CHUNK = 40


def plan_of(model: Any, *, scratch: bool, block_size: int = BLOCK_SIZE, **given: Any) -> Plan:
    limits = RequestLimits(max_model_len=256, max_num_batched_tokens=256)
    return kvpipe.plan(
        layers_of(model, block_size),
        limits,
        4 << 20,
        prefix_caching=False,
        scratch=scratch,
        **given,
    )


def served(model: Any, plan: Plan, **options: Any) -> tuple[Any, Any]:
    """(output, cache) of one ragged batch, its prompts in chunks; every block back at the end."""
    cache = bind(model, plan, shuffle=3)
    try:
        found = generate(model, prompts(LENGTHS), cache, prefill_chunk_size=CHUNK, **options)
        cache.release()
        assert cache.bound.manager.pool.stats().in_use == 0
        return found, cache
    finally:
        cache.bound.unbind()


@pytest.mark.parametrize("block_size", [8, 3])
@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logits_are_those_of_transformers(family: str, block_size: int) -> None:
    model = reference(family).model
    own = generate(model, prompts(LENGTHS), prefill_chunk_size=CHUNK)
    plan = plan_of(model, scratch=True, block_size=block_size)
    plain = plan_of(model, scratch=False, block_size=block_size)
    found, cache = served(model, plan)
    assert_equal(own, found)
    assert max_difference(own, found) == 0.0
    assert len(found.sequences[0]) == max(LENGTHS) + NEW_TOKENS
    if any(plan.ranks[0].config.scratch):
        assert cache.peak_bytes_held <= served(model, plain)[1].peak_bytes_held


def test_uneven_chunks_of_layers_share_scratch() -> None:
    """Five windows in one table beside one full layer in blocks of another size."""
    model = reference("gemma3").model
    few = SlotOptions(objective="fewest_tables", table_price=0.2)
    plan = plan_of(model, scratch=True, slots=few)
    assert len(plan.groups) == 2 and len({group.spec.block_size for group in plan.groups}) == 2
    few_tokens = {"max_new_tokens": 9, "min_new_tokens": 9}
    own = generate(model, prompts(LENGTHS), prefill_chunk_size=CHUNK, **few_tokens)
    found, _ = served(model, plan, **few_tokens)
    assert_equal(own, found)
    assert max_difference(own, found) == 0.0


def test_a_chunk_longer_than_a_window_takes_fewer_blocks_in_scratch() -> None:
    """Two rows of 90 tokens in blocks of 8: 12 blocks of a table that keeps all. A window of 24
    needs the last 23 tokens, in 4 blocks; the other 8 of each row lie two to a slot, since the
    table has two layers."""
    model, few = reference("gemma2").model, {"max_new_tokens": 2, "min_new_tokens": 2}
    held = []
    for scratch in (False, True):
        cache = bind(model, plan_of(model, scratch=scratch))
        try:
            generate(model, prompts((90, 90)), cache, **few)
        finally:
            cache.bound.unbind()
        held.append(cache.bound.store.peak_blocks)
    assert WINDOW == 24 and held == [2 * 2 * 12, 2 * 12 + 2 * 4 + 2 * 8 // 2]


def test_what_cannot_go_with_scratch_is_said() -> None:
    model = reference("gemma2").model
    plan = plan_of(model, scratch=True)
    with pytest.raises(ConfigError, match="mode: expected gather"):
        bind(model, plan, mode="direct")
    with pytest.raises(ConfigError, match="prefix_caching: expected false"):
        bind(model, plan, prefix_caching=True)
    cache = bind(model, plan, mode="auto")
    cache.bound.unbind()
    assert cache.bound.mode == "gather"


@pytest.mark.full
def test_auto_is_on_where_the_binding_gathers_and_no_prefix_is_cached(tmp_path: Path) -> None:
    model = reference("gemma2").model
    described = model.config.to_dict() | {"architectures": [type(model).__name__]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    words = ["model=hf", f"model.path={tmp_path}", "binding=transformers", "model.dtype=float32"]
    words += ["binding.new_tokens=8", "binding.prompt_tokens=[90,31]", "backend=torch"]
    words += ["scheduler.max_model_len=128", "scheduler.max_num_batched_tokens=64"]

    def run(*overrides: str) -> Any:
        return kvpipe.run([*words, *overrides])

    made = run("cache.enable_prefix_caching=false")
    assert any(made.plan.ranks[0].config.scratch)
    proof = made.bound[0].verify
    assert proof.passed and "mode gather" in proof.summary
    for overrides in (
        ["cache.enable_prefix_caching=true"],
        ["cache.enable_prefix_caching=false", "binding.mode=direct"],
        ["cache.enable_prefix_caching=false", "grouping.scratch=off"],
    ):
        assert run(*overrides).plan.ranks[0].config.scratch == ()
