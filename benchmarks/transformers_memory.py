"""Bytes of cache that a skewed batch holds: transformers' own DynamicCache against bound pages.

    python benchmarks/transformers_memory.py            # prints a Markdown table

Tiny random models in float32; prompts of 600, 30, 150 and 60 tokens, 40 new tokens, blocks of 16.
The generated tokens are compared as well: a cache that forgets is small.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "transformers_cache"))
from equality import generate, planned  # noqa: E402
from tiny_models import build, prompts  # noqa: E402

from kvpipe.integrations.transformers import bind  # noqa: E402

LENGTHS = (600, 30, 150, 60)
NEW_TOKENS = 40
BLOCK_SIZE = 16
FAMILIES = (
    "llama", "gemma3", "gpt_oss", "deepseek_v3", "llama4", "jamba", "qwen3_next", "gemma3n",
    "mistral",
)  # fmt: skip


def dynamic_bytes(cache: Any) -> int:
    """Bytes of every tensor in a DynamicCache."""
    total = 0
    for layer in cache.layers:
        tensors = [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for name in ("conv_states", "recurrent_states"):
            tensors += getattr(layer, name, {}).values()
        total += sum(t.numel() * t.element_size() for t in tensors if t is not None)
    return total


def measure(family: str) -> dict[str, Any]:
    """dynamic, paged, peak: bytes; equal: whether the tokens are the same."""
    model, inputs = build(family), prompts(LENGTHS)
    new = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
    own_cache = transformers.DynamicCache(config=model.config)
    own = generate(model, inputs, own_cache, **new)
    limits = {"max_model_len": 704, "max_num_batched_tokens": 704}
    plan = planned(model, family, BLOCK_SIZE, memory=64 << 20, **limits)
    cache = bind(model, plan)
    found = generate(model, inputs, cache, **new)
    cache.bound.unbind()
    return {
        "dynamic": dynamic_bytes(own_cache),
        "paged": cache.bytes_held,
        "peak": cache.peak_bytes_held,
        "equal": found.sequences.tolist() == own.sequences.tolist(),
    }


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, ", end="")
    print(f"{platform.machine()}; prompts {LENGTHS}, {NEW_TOKENS} new tokens, block {BLOCK_SIZE}\n")
    print("| model | DynamicCache | bound pages | at their peak | ratio | tokens equal |")
    print("|---|---|---|---|---|---|")
    for family in FAMILIES:
        found = measure(family)
        ratio = found["dynamic"] / found["paged"]
        numbers = " | ".join(f"{found[name]:,}" for name in ("dynamic", "paged", "peak"))
        print(f"| {family} | {numbers} | {ratio:.2f}x | {'yes' if found['equal'] else 'NO'} |")


if __name__ == "__main__":
    main()
