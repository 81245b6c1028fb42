"""A transformers model generating through a cache that kvpipe planned, allocated and bound.

    python examples/generate.py                        # a small Llama with random weights
    python examples/generate.py ./folder               # a folder with a config.json: random weights
    python examples/generate.py ./folder --weights     # ... with its own weights

Prints the plan, and for transformers' own cache and the bound one: tokens a second, bytes held, and
whether the text is the same. Needs the extra `hf`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import transformers

import kvpipe
from kvpipe.integrations.transformers import bind, cache_keyword, layers_of
from kvpipe.specs.base import RequestLimits

PROMPTS = (600, 30, 150, 60)  # tokens: a skewed batch, where padding hurts most
SMALL_LLAMA = transformers.LlamaConfig(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=4096,
)


def load_model(folder: str | None, weights: bool) -> Any:
    config = transformers.AutoConfig.from_pretrained(folder) if folder else SMALL_LLAMA
    if weights:
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def left_padded(lengths: tuple[int, ...], vocab_size: int) -> dict[str, Any]:
    width = max(lengths)
    ids = torch.zeros((len(lengths), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, width - length :] = torch.randint(3, vocab_size, (length,))
        mask[row, width - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def timed(model: Any, inputs: dict[str, Any], new_tokens: int, cache: Any) -> tuple[Any, float]:
    """The generated sequences, and new tokens a second."""
    options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
    start = time.perf_counter()
    found = model.generate(**inputs, **options, **{cache_keyword(model): cache})
    return found, len(inputs["input_ids"]) * new_tokens / (time.perf_counter() - start)


def dynamic_bytes(cache: Any) -> int:
    """Of keys, values and states of transformers' own cache."""
    tensors = []
    for layer in cache.layers:
        tensors += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for states in ("conv_states", "recurrent_states"):
            tensors += getattr(layer, states, {}).values()
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--weights", action="store_true", help="load the folder's weights")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=16, help="tokens")
    parser.add_argument("--memory-mib", type=int, default=256, help="for the cache")
    parser.add_argument("--mode", choices=["auto", "gather", "direct"], default="auto")
    asked = parser.parse_args()

    model = load_model(asked.folder, asked.weights)
    model.generation_config.eos_token_id = None  # generate exactly --new-tokens
    model.generation_config.pad_token_id = 0
    inputs = left_padded(PROMPTS, model.config.get_text_config(decoder=True).vocab_size)
    longest = max(PROMPTS) + asked.new_tokens

    # What the model caches -> which layers share blocks, and how many blocks the memory holds.
    layers = layers_of(model, asked.block_size)
    limits = RequestLimits(max_model_len=longest, max_num_batched_tokens=max(PROMPTS))
    plan = kvpipe.plan(layers, limits, asked.memory_mib << 20)
    for number, group in enumerate(plan.groups):
        print(f"group {number}: {group.spec.kind}, {len(group.layer_names)} layers, "
              f"block of {group.spec.block_size} tokens")  # fmt: skip
    print(f"{plan.num_blocks:,} blocks; {plan.capacity.requests_steady:,} requests fit\n")

    # The pages are allocated, and the model's cache layers bound to them.
    cache = bind(model, plan, mode=asked.mode)
    own = transformers.DynamicCache(config=model.config)
    timed(model, inputs, 2, transformers.DynamicCache(config=model.config))  # warm up
    expected, own_speed = timed(model, inputs, asked.new_tokens, own)
    found, speed = timed(model, inputs, asked.new_tokens, cache)
    same = bool((expected == found).all())
    print(f"own cache:   {own_speed:8.1f} tokens/s  {dynamic_bytes(own):>12,} bytes held")
    print(f"bound pages: {speed:8.1f} tokens/s  {cache.bytes_held:>12,} bytes held "
          f"(mode {cache.bound.mode})")  # fmt: skip
    print("the text is the same" if same else "THE TEXT DIFFERS")
    cache.bound.unbind()


if __name__ == "__main__":
    main()
