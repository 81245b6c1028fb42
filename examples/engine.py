"""A small serving engine on kvpipe's parts: continuous batching, prefix caching, preemption.

    python examples/engine.py                     # a tiny Llama with random weights, a small pool
    python examples/engine.py ./folder            # a folder with a config.json: random weights

Tokens are compared with transformers' generate, speed with its continuous batching. It serves
models whose layers store K and V of their own; greedily, in one process: an example, no server.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention

import kvpipe
from kvpipe.embed import OutOfBlocks, Pool
from kvpipe.integrations.transformers import layers_of
from kvpipe.specs.base import RequestLimits

NAME, THEIRS = "kvpipe_engine", "transformers' continuous batching"
SIZES = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256}
LAYERS = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY_LLAMA = transformers.LlamaConfig(**SIZES, **LAYERS, max_position_embeddings=512)


@dataclass
class Request:  # tokens: the prompt and what was generated; stored: of these, in the cache
    name: int
    tokens: list[int]
    target: int
    stored: int = 0
    preempted: int = 0


@dataclass
class Engine:
    """`step` runs the model once: a token for each request that decodes, then prompts in chunks."""

    model: Any
    pool: Pool
    batch_tokens: int = 128
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)  # oldest first
    steps: int = 0
    hit_tokens: int = 0

    def __post_init__(self) -> None:
        config = self.model.config
        self.layer_names = [layer.name for layer in layers_of(self.model)]
        assert len(self.layer_names) == config.num_hidden_layers, "layers that share K/V"
        transformers.AttentionInterface.register(NAME, self.attend)
        transformers.AttentionMaskInterface.register(NAME, lambda *_, **__: None)
        self.model.set_attn_implementation(NAME)

    def serve(self, requests: list[Request]) -> list[Request]:
        """All of them, in the order in which they finish."""
        self.waiting.extend(requests)
        finished: list[Request] = []
        while self.waiting or self.running:
            self.step()
            for request in [r for r in self.running if len(r.tokens) == r.target]:
                self.pool.manager.free(request.name)
                self.running.remove(request)
                finished.append(request)
        return finished

    def step(self) -> None:
        self.pool.begin_step()
        self.batch = [(request, 1) for request in self.decode()]
        budget = self.batch_tokens - len(self.batch)
        budget -= self.prefill([r for r in self.running if len(r.tokens) - r.stored > 1], budget)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            request.stored = self.pool.manager.add_request(request.name, request.tokens)
            granted = self.prefill([request], budget)
            if not granted:
                self.pool.manager.free(request.name)
                assert self.batch, "a request that does not fit alone"
                break
            self.hit_tokens += 0 if request.preempted else request.stored
            self.running.append(self.waiting.popleft())
            budget -= granted
        self.forward()
        self.steps += 1

    def decode(self) -> list[Request]:
        """Requests that get one more token; the youngest are preempted until the others fit."""
        while batch := [r for r in self.running if len(r.tokens) - r.stored == 1]:
            try:
                self.pool.append([r.name for r in batch], [r.tokens[-1] for r in batch])
                return batch
            except OutOfBlocks:
                youngest = self.running.pop()
                self.pool.manager.free(youngest.name)
                youngest.stored, youngest.preempted = 0, youngest.preempted + 1
                self.waiting.appendleft(youngest)
        return []

    def prefill(self, requests: list[Request], budget: int) -> int:
        """Tokens granted: as much of each prompt as the budget and the pool have room for."""
        granted = 0
        for request in requests:
            count = min(len(request.tokens) - request.stored, budget - granted)
            try:
                if count > 0:
                    self.pool.grant(request.name, count)
                    self.batch.append((request, count))
                    granted += count
            except OutOfBlocks:
                break
        return granted

    def forward(self) -> None:
        """One pass over the tokens of all requests, side by side in one row."""
        spans = [range(r.stored, r.stored + count) for r, count in self.batch]
        tokens = [r.tokens[i] for (r, _), span in zip(self.batch, spans, strict=True) for i in span]
        ends = torch.tensor([count for _, count in self.batch]).cumsum(0) - 1
        with torch.inference_mode():
            out = self.model(
                input_ids=torch.tensor([tokens]),
                position_ids=torch.tensor([[i for span in spans for i in span]]),
                use_cache=False,
                logits_to_keep=ends,
            )
        for (request, count), logits in zip(self.batch, out.logits[0], strict=True):
            request.stored += count
            if request.stored == len(request.tokens):
                request.tokens.append(int(logits.argmax()))

    def attend(self, module, query, key, value, mask, scaling=None, sliding_window=None, **more):
        """query [1, Q, T, D], key and value [1, H, T, D] -> [1, T, Q, D], request by request."""
        assert more.get("softcap") is None and more.get("s_aux") is None, "plain attention only"
        layer, outputs, start = self.layer_names[module.layer_idx], [], 0
        self.pool.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
        for request, count in self.batch:
            first = max(0, request.stored - sliding_window + 1) if sliding_window else 0
            k, v = (x.transpose(0, 1)[None] for x in self.pool.read(layer, request.name, first))
            keys = torch.arange(first, request.stored + count)
            own = keys[-count:, None]
            seen = keys <= own
            if sliding_window:
                seen &= keys > own - sliding_window
            rows = query[:, :, start : start + count]
            options = {"attn_mask": seen, "scale": scaling, "enable_gqa": True}
            outputs.append(scaled_dot_product_attention(rows, k, v, **options))
            start += count
        return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--blocks", type=int, default=40, help="of 16 tokens, in the pool")
    asked = parser.parse_args()
    config = transformers.AutoConfig.from_pretrained(asked.folder) if asked.folder else TINY_LLAMA
    torch.set_num_threads(1)  # sums this small gain nothing from more, which wait for one another
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    limits = RequestLimits(max_model_len=256, max_num_batched_tokens=128)
    layers, new = layers_of(model), 24
    width = kvpipe.plan(layers, limits, 2**30).ranks[0].config.bytes_per_block
    plan = kvpipe.plan(layers, limits, asked.blocks * width)
    draw = Random(0)
    ids = [[draw.randrange(3, 500) for _ in range(draw.randrange(5, 90))] for _ in range(16)]
    prompts = [ids[0] + own if i % 2 else own for i, own in enumerate(ids)]  # half begin alike
    options = {"max_new_tokens": new, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    plain = [model.generate(torch.tensor([p]), **options)[0].tolist() for p in prompts]

    passes: list[int] = []  # of their batching, counted; a pool of the same size
    counter = model.register_forward_pre_hook(lambda *_: passes.append(1))
    sizes = {"num_blocks": asked.blocks, "page_size": 16, "max_batch_tokens": 128}
    batching = transformers.ContinuousBatchingConfig(**sizes)
    start = time.perf_counter()
    model.generate_batch(prompts, transformers.GenerationConfig(**options), batching)
    theirs = time.perf_counter() - start
    counter.remove()
    engine = Engine(model, Pool.open(plan, prefix_caching=True))
    requests = [Request(i, list(p), len(p) + new) for i, p in enumerate(prompts)]
    start = time.perf_counter()
    engine.serve(requests)
    ours = time.perf_counter() - start
    equal = sum(r.tokens == tokens for r, tokens in zip(requests, plain, strict=True))
    print(f"{equal} of {len(requests)} requests equal transformers' generate, token by token")
    lost, hit = sum(r.preempted for r in requests), engine.hit_tokens
    print(f"{lost} preemptions, {hit} prompt tokens hit")
    for name, steps, took in (("this engine", engine.steps, ours), (THEIRS, len(passes), theirs)):
        print(f"{name}: {16 * new / took:,.0f} tokens, {steps / took:.0f} steps a second")


if __name__ == "__main__":
    main()
