"""Generate with transformers' own cache and with a bound one, and compare tokens and logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tiny_models import ENCODER_DECODERS, build, inputs_of

import kvpipe
from kvpipe.cache.plan import Plan
from kvpipe.integrations.transformers import bind, cache_keyword, layers_of
from kvpipe.specs.base import RequestLimits

BOUND = 1e-4  # logits; float32
NEW_TOKENS = 64
LENGTHS = (37, 9, 22)
BLOCK_SIZE = 8
SHORT: dict[str, Any] = {"max_new_tokens": 20, "min_new_tokens": 20}


@dataclass(frozen=True)
class Reference:
    model: Any
    inputs: dict[str, Any]
    output: Any


@cache
def reference(family: str, attention: str | None = None) -> Reference:
    """What transformers' own cache gives."""
    model = build(family, attention=attention)
    inputs = inputs_of(family, LENGTHS)
    return Reference(model, inputs, generate(model, inputs))


@cache
def short_output(family: str) -> Any:
    """20 tokens of the same batch, where the subject is not how long it stays equal."""
    case = reference(family)
    return generate(case.model, case.inputs, **SHORT)


def generate(model: Any, inputs: dict[str, Any], cache: Any = None, **options: Any) -> Any:
    """NEW_TOKENS greedy tokens a row, with the logits of each."""
    asked: dict[str, Any] = dict(
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    if cache is not None:
        asked[cache_keyword(model)] = cache
    return model.generate(**inputs, **{**asked, **options})


def planned(
    model: Any, family: str, block_size: int = BLOCK_SIZE, cache_dtype: str | None = None,
    memory: int = 8 << 20, **limits: int,
) -> Plan:  # fmt: skip
    """A plan for one batch of these tests."""
    encoder = {"whisper": 30}.get(family, max(LENGTHS)) if family in ENCODER_DECODERS else 0
    given = dict(max_model_len=256, max_num_batched_tokens=256, max_encoder_tokens=encoder)
    return kvpipe.plan(
        layers_of(model, block_size, cache_dtype), RequestLimits(**{**given, **limits}), memory
    )


def max_difference(one: Any, other: Any) -> float:
    """Of the logits of all steps of two generations; NaN anywhere is infinite."""
    pairs = zip(one.logits, other.logits, strict=True)
    worst = max(float((a - b).abs().max()) for a, b in pairs)
    return worst if worst == worst else float("inf")


def assert_equal(expected: Any, found: Any, bound: float = BOUND) -> None:
    """Same tokens, and logits within the bound: a lucky argmax does not pass."""
    assert found.sequences.tolist() == expected.sequences.tolist()
    difference = max_difference(expected, found)
    assert difference < bound, f"logits differ by {difference:.3g}"


def generated_with(case: Reference, family: str, **options: Any) -> tuple[Any, Any]:
    """(output, cache) of the same batch through a bound cache."""
    cache = bind(case.model, planned(case.model, family), **options)
    try:
        return generate(case.model, case.inputs, cache), cache
    finally:
        cache.bound.unbind()
