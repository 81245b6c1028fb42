"""Decode with planned kernels: what they write is what attention reads from `kv_cache`.

    python examples/kernel_decode.py

Pythia-70M's plan, two requests, random queries, keys and values instead of a model. Every step
writes K and V of each layer in one kernel launch, then attends through the tensor that binding put
into the layer; the same attention over a plain list of keys and values must agree.
B blocks, N tokens in a block, H heads, D head size.
"""

from __future__ import annotations

import torch

import kvpipe
from kvpipe.blocks import BlockManager

REQUEST = ["model=pythia_70m", "device=cpu", "backend=host", "cache.kv_cache_memory_bytes=8MiB"]
PROMPTS, STEPS = {"a": 20, "b": 33}, 12


def attend(q_HD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor) -> torch.Tensor:
    weights = torch.einsum("hd,thd->ht", q_HD, k_THD).softmax(-1)
    return torch.einsum("ht,thd->hd", weights, v_THD)


def main() -> None:
    result = kvpipe.run([*REQUEST, "layout=flash_attn"])
    bound, backend = result.bound[0], result.backend
    manager = BlockManager.from_plan(result.plan)
    layers = list(bound.forward_context.values())
    writes = {}  # layer -> one launch that writes K and V: strides are checked here, once
    for layer in layers:
        targets = [(bound.buffers.buffers[view.buffer], view) for view in layer.views]
        writes[layer.name] = backend.plan_write(targets, layer.kv_cache.dtype)
    H, D = layers[0].views[0].shape[2:]
    remembered = {(layer.name, r): [[], []] for layer in layers for r in PROMPTS}

    def step(requests: list[str], counts: list[int], grant) -> float:
        manager.begin_step()
        grant()
        slots = torch.from_numpy(manager.slot_mapping(0).copy())
        worst = 0.0
        for layer in layers:
            k, v = (torch.randn(len(slots), H, D).to(layer.kv_cache.dtype) for _ in "kv")
            writes[layer.name](k, slots, v)
            for r, k_r, v_r in zip(requests, k.split(counts), v.split(counts), strict=True):
                kept = remembered[layer.name, r]
                kept[0].append(k_r)
                kept[1].append(v_r)
                (blocks,) = torch.from_numpy(manager.block_table(0, [r])).long()
                held = sum(map(len, kept[0]))
                # kv_cache is [2, B, N, H, D]: take this request's blocks, then its tokens.
                cached = layer.kv_cache[:, blocks].flatten(1, 2)[:, :held].float()
                q, plain = torch.randn(H, D), [torch.cat(part).float() for part in kept]
                worst = max(worst, float((attend(q, *cached) - attend(q, *plain)).abs().max()))
        backend.check()
        return worst

    worst = 0.0
    for name, length in PROMPTS.items():
        manager.add_request(name)
        worst = max(worst, step([name], [length], lambda n=name, t=length: manager.allocate(n, t)))
    both = list(PROMPTS)
    for _ in range(STEPS):
        worst = max(worst, step(both, [1] * len(both), lambda: manager.append(both)))
    tokens = sum(PROMPTS.values()) + STEPS * len(both)
    print(
        f"{backend.describe()['build']}: {tokens} tokens, {len(layers)} layers, one launch a write"
    )
    print(f"attention through kv_cache differs from a plain list by {worst}")
    assert worst == 0.0


if __name__ == "__main__":
    main()
