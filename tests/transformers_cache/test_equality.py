"""Unmodified transformers models generate the same through a planned, bound, paged cache.

Tiny random models in float32, a ragged batch of three, 64 greedy tokens; the models' own cache is
the reference. Six families on every commit, all in the full tier.
"""

from __future__ import annotations

import pytest
from equality import assert_equal, generated_with, max_difference, reference
from tiny_models import FAMILIES

COMMIT_TIER = ("llama", "gemma3", "deepseek_v3", "jamba", "gemma3n", "whisper")
GATHER_ONLY = {
    "falcon": "AttentionInterface",
    "bloom": "AttentionInterface",
    "mamba": "no keys and values",
    "mamba2": "no keys and values",
}


def tiers(families: object, on_commit: tuple[str, ...] = COMMIT_TIER) -> list[object]:
    """The commit tier's families as they are, the others marked `full`."""
    return [
        name if name in on_commit else pytest.param(name, marks=pytest.mark.full)
        for name in families  # type: ignore[attr-defined]
    ]


def first_of(values: object) -> list[object]:
    """The first on every commit, the others marked `full`."""
    first, *others = values  # type: ignore[misc]
    return [first, *(pytest.param(value, marks=pytest.mark.full) for value in others)]


@pytest.mark.parametrize("family", tiers(FAMILIES))
def test_gather_mode_is_bit_identical(family: str) -> None:
    case = reference(family)
    found, cache = generated_with(case, family, shuffle=7)
    assert_equal(case.output, found)
    assert max_difference(case.output, found) == 0.0
    assert cache.bound.mode == "gather"


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_block_ids_in_order_give_the_same(family: str) -> None:
    case = reference(family)
    assert_equal(case.output, generated_with(case, family)[0])


@pytest.mark.parametrize("family", tiers(FAMILIES, ("llama", "gemma3", "deepseek_v3")))
def test_direct_mode_is_equal_where_a_model_can_take_it(family: str) -> None:
    case = reference(family)
    found, cache = generated_with(case, family, mode="auto", shuffle=7)
    assert_equal(case.output, found)
    assert cache.bound.mode == ("gather" if family in GATHER_ONLY else "direct")
    assert GATHER_ONLY.get(family, "") in cache.bound.reason


@pytest.mark.full
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("gemma2", "gpt_oss")])
def test_eager_attention_is_equal_too(family: str) -> None:
    case = reference(family, "eager")
    assert_equal(case.output, generated_with(case, family, shuffle=7)[0])


@pytest.mark.parametrize("family", tiers(FAMILIES))
def test_random_weights_make_text_that_depends_on_context(family: str) -> None:
    """Else equal tokens would prove nothing: rows differ, and logits of one row change."""
    output = reference(family).output
    new = output.sequences[:, -64:]
    assert len({tuple(row) for row in new.tolist()}) == len(new) or family == "whisper"
    spread = max(float(step.std(0).max()) for step in output.logits)
    assert spread > 0.05
