"""Models that need more than a decoder and a prompt: equal text, or one line that says why not."""

from __future__ import annotations

from typing import Any

import pytest
from equality import BOUND, SHORT, assert_equal, generate, max_difference
from test_equality import tiers
from tiny_models import build, inputs_of
from tiny_odd_models import ODD, build_odd, odd_inputs

import kvpipe
from kvpipe.errors import ConfigError
from kvpipe.integrations.transformers import bind, layers_of
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.binding.transformers_cache import trial

# name -> why it is not bound
REFUSED = {
    "mllama": r"something kept of two tokens in every layer, got nothing in layer 1, 3",
    "deepseek_v4": r"got the kind 'heavily_compressed_attention' \(DeepseekV4HCACache\)",
    "minimax": r"transformers' own cache, got ValueError: MiniMax uses cache of its own",
    "xlnet": r"a decoder that takes a cache, got XLNetModel, whose forward has no argument for one",
    "openai-gpt": r"got OpenAIGPTModel, whose forward has no argument for one",
    "recurrent_gemma": r"layer 0: .* got conv1d_state in its own module, recurrent_states in its",
}
GATHER_ONLY = {"mpt": "does not take pages", "bigbird_pegasus": "in its encoder"}
NO_PADDING = ("git",)
RIGHT = [name for name in ODD if name not in (*REFUSED, *NO_PADDING)]
ON_COMMIT = ("mpt", "gemma3")


def planned(model: Any) -> Any:
    limits = RequestLimits(max_model_len=128, max_num_batched_tokens=128, max_encoder_tokens=32)
    return kvpipe.plan(layers_of(model, 8), limits, 8 << 20)


def bound_text(model: Any, inputs: dict[str, Any], mode: str) -> tuple[Any, Any]:
    cache = bind(model, planned(model), mode=mode, shuffle=3)
    try:
        return generate(model, inputs, cache, **SHORT), cache.bound
    finally:
        cache.bound.unbind()


@pytest.mark.parametrize("name", tiers(RIGHT, ON_COMMIT))
def test_padded_batches_with_images_and_encoders_are_equal_in_both_modes(name: str) -> None:
    model, inputs = build_odd(name), odd_inputs(name)
    own = generate(model, inputs, use_cache=True, **SHORT)
    gathered, _ = bound_text(model, inputs, "gather")
    assert max_difference(own, gathered) == 0.0
    read, bound = bound_text(model, inputs, "auto")
    assert_equal(own, read)
    assert bound.mode == ("gather" if name in GATHER_ONLY else "direct")
    assert GATHER_ONLY.get(name, "") in bound.reason


@pytest.mark.full
@pytest.mark.parametrize("name", RIGHT)
def test_the_images_and_encoders_of_these_tests_count(name: str) -> None:
    """Else equal text would prove nothing about them."""
    if name in ("mpt", "modernbert-decoder", "gemma4"):
        pytest.skip("a prompt of text alone")
    model, inputs = build_odd(name), odd_inputs(name)
    own = generate(model, inputs, use_cache=True, **SHORT)
    key = "pixel_values" if "pixel_values" in inputs else "input_ids"
    changed = {**inputs, key: inputs[key].flip(0)}
    assert max_difference(own, generate(model, changed, use_cache=True, **SHORT)) > 100 * BOUND


@pytest.mark.parametrize("name", tiers(REFUSED, ("minimax", "recurrent_gemma")))
def test_what_cannot_be_bound_says_why_in_one_line(name: str) -> None:
    model = build_odd(name)
    with pytest.raises(ConfigError, match=REFUSED[name]) as caught:
        layers_of(model)
    assert all("\n" not in str(problem) for problem in caught.value.problems)


def test_attention_that_reads_padding_is_refused_where_there_is_some() -> None:
    """GIT computes its mask for image tokens that are not there, once rows are cached."""
    model = build_odd("git")
    with pytest.raises(ConfigError, match="no padding, got padding, where its outputs differ by"):
        bound_text(model, odd_inputs("git"), "gather")
    inputs = odd_inputs("git", lengths=(9, 9))
    own = generate(model, inputs, use_cache=True, **SHORT)
    assert max_difference(own, bound_text(model, inputs, "gather")[0]) == 0.0


def test_a_decoder_that_adds_tokens_of_its_own_is_refused() -> None:
    import torch

    model = build_odd("git")
    inputs = {**odd_inputs("git", lengths=(9, 9)), "pixel_values": torch.zeros((2, 3, 16, 16))}
    with pytest.raises(ConfigError, match="stores the 9 columns it is given, got 14 columns in"):
        bound_text(model, inputs, "gather")


def test_a_trial_without_padding_would_not_have_seen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard's own proof: rows of one length make GIT look right."""
    monkeypatch.setattr(trial, "PROMPTS", (5, 5))
    with pytest.raises(AssertionError):
        model, inputs = build_odd("git"), odd_inputs("git")
        own = generate(model, inputs, use_cache=True, **SHORT)
        assert_equal(own, bound_text(model, inputs, "gather")[0])


def test_a_cache_that_the_call_does_not_use_is_refused() -> None:
    model = build("llama")
    with pytest.raises(ConfigError, match="use_cache: expected true, with a bound cache"):
        cache = bind(model, planned(model))
        generate(model, inputs_of("llama"), cache, use_cache=False)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["gather", "direct"])
def test_a_compiled_model_generates_the_same(mode: str) -> None:
    model, inputs = build("llama"), inputs_of("llama")
    own = generate(model, inputs, **SHORT)
    model.compile(backend="eager")
    assert_equal(own, bound_text(model, inputs, mode)[0])
