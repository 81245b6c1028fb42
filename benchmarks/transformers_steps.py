"""What a bound cache costs a decoding step: transformers' DynamicCache against the bound pages.

    python benchmarks/transformers_steps.py [tiny|mid ...]      # prints a Markdown table

Random Llama-like models in float32, one thread, CPU time of this thread, step by step in turn; the
median and the least step. Every cache must choose the same tokens.
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

Spent = dict[str, list[float]]


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


def decode(model: Any, prompts: torch.Tensor, caches: dict[str, Any], new: int) -> Spent:
    """Name -> CPU ms of each step after the prompt; the caches take turns at every step, and choose
    the same tokens."""
    spent: Spent = {name: [] for name in caches}
    keyword = cache_keyword(model)
    with torch.no_grad():
        tokens = {name: _next(model, prompts, {keyword: cache}) for name, cache in caches.items()}
        for _ in range(new):
            for name, cache in caches.items():
                start = time.thread_time_ns()
                tokens[name] = _next(model, tokens[name], {keyword: cache})
                spent[name].append((time.thread_time_ns() - start) / 1e6)
            wanted = next(iter(tokens.values()))
            assert all(torch.equal(each, wanted) for each in tokens.values()), tokens
    return spent


def _next(model: Any, tokens: torch.Tensor, held: dict[str, Any]) -> torch.Tensor:
    chosen: torch.Tensor = model(tokens, **held).logits[:, -1:].argmax(-1)
    return chosen


def measure(size: Size) -> Spent:
    """Name -> ms of each step of each round."""
    model = model_of(size)
    prompts = torch.randint(0, size.vocabulary, (size.rows, size.prompt))
    limit = size.prompt + size.new + 1
    plan = planned(model, "llama", 16, memory=256 << 20, max_model_len=limit,
                   max_num_batched_tokens=limit * size.rows)  # fmt: skip
    slow = TorchBackend(TorchBackend.Options(name="torch", device="cpu"))
    ways: dict[str, dict[str, Any]] = {
        "gather": {"mode": "gather"},
        "gather, torch backend": {"mode": "gather", "backend": slow},
    }
    times: Spent = {"DynamicCache": [], **{name: [] for name in ways}, "direct": []}
    for _ in range(size.rounds):
        for name, way in ways.items():
            cache = bind(model, plan, **way)
            own = DynamicCache(config=model.config)
            spent = decode(model, prompts, {"DynamicCache": own, name: cache}, size.new)
            for each, steps in spent.items():
                times[each] += steps
            cache.bound.unbind()
        # Alone: while it is bound, attention of the whole model goes through its pages.
        direct = bind(model, plan, mode="direct")
        times["direct"] += decode(model, prompts, {"direct": direct}, size.new)["direct"]
        direct.bound.unbind()
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
