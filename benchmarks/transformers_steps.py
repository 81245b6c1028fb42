"""What a bound cache costs a decoding step: transformers' DynamicCache against the bound pages.

    python benchmarks/transformers_steps.py [tiny|mid ...]      # prints a Markdown table

Random Llama-like models in float32, one thread, CPU time of this thread, rounds interleaved; the
median and the least of the rounds. The tokens of all runs must be the same.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "transformers_cache"))
from equality import planned  # noqa: E402

from kvpipe.backends.torch_ import TorchBackend  # noqa: E402
from kvpipe.integrations.transformers import bind, cache_keyword  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Size:
    """hidden to vocabulary: of the model. rows of `prompt` tokens each, `new` steps after them."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    rows: int
    prompt: int
    new: int
    rounds: int


SIZES = {
    "tiny": Size(hidden=64, layers=4, heads=4, kv_heads=2, vocabulary=512, rows=4, prompt=64,
                 new=48, rounds=5),
    "mid": Size(hidden=768, layers=12, heads=12, kv_heads=12, vocabulary=16000, rows=4, prompt=128,
                new=12, rounds=3),
}  # fmt: skip


def model_of(size: Size) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=size.hidden, intermediate_size=size.hidden * 8 // 3 // 8 * 8,
        num_hidden_layers=size.layers, num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads, vocab_size=size.vocabulary,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def decode(model: Any, prompts: torch.Tensor, cache: Any, new: int) -> tuple[float, torch.Tensor]:
    """CPU ms a step after the prompt, and the tokens chosen."""
    held = {cache_keyword(model): cache}
    with torch.no_grad():
        token = model(prompts, **held).logits[:, -1:].argmax(-1)
        chosen, start = [token], time.thread_time_ns()
        for _ in range(new):
            token = model(token, **held).logits[:, -1:].argmax(-1)
            chosen.append(token)
        spent = time.thread_time_ns() - start
    return spent / new / 1e6, torch.cat(chosen, 1)


def measure(size: Size) -> dict[str, list[float]]:
    """Name -> ms a step of each round."""
    model = model_of(size)
    prompts = torch.randint(0, size.vocabulary, (size.rows, size.prompt))
    limit = size.prompt + size.new + 1
    plan = planned(model, "llama", 16, memory=256 << 20, max_model_len=limit,
                   max_num_batched_tokens=limit * size.rows)  # fmt: skip
    slow = TorchBackend(TorchBackend.Options(name="torch", device="cpu"))
    ways: dict[str, dict[str, Any]] = {
        "gather": {"mode": "gather"},
        "direct": {"mode": "direct"},
        "gather, torch backend": {"mode": "gather", "backend": slow},
    }
    times: dict[str, list[float]] = {"DynamicCache": [], **{name: [] for name in ways}}
    for _ in range(size.rounds):
        spent, wanted = decode(model, prompts, DynamicCache(config=model.config), size.new)
        times["DynamicCache"].append(spent)
        for name, way in ways.items():
            cache = bind(model, plan, **way)
            spent, tokens = decode(model, prompts, cache, size.new)
            cache.bound.unbind()
            assert torch.equal(tokens, wanted), name
            times[name].append(spent)
    return times


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print("| model | cache | ms a step, median (least) | over DynamicCache, median (least) |")
    print("|---|---|---|---|")
    for name in names or SIZES:
        times = measure(SIZES[name])
        own = times["DynamicCache"]
        for way, each in times.items():
            median = statistics.median(each) / statistics.median(own) - 1
            least = min(each) / min(own) - 1
            print(f"| {name} | {way} | {statistics.median(each):.3f} ({min(each):.3f}) "
                  f"| {median:+.0%} ({least:+.0%}) |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
