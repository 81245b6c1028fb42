"""Decode with planned kernels: K and V written, and attention read, through block tables.

    python examples/kernel_decode.py

Pythia-70M's plan, two requests, random queries, keys and values instead of a model. Every step
writes K and V of each layer in one kernel launch, then attends to all the requests of the batch
through their block tables; the same attention over plain lists of keys and values must agree.
Nothing is gathered. H heads, D head size, T tokens, R requests.
"""

from __future__ import annotations

import torch

import kvpipe
from kvpipe.blocks import BlockManager

REQUEST = ["model=pythia_70m", "device=cpu", "backend=host", "cache.kv_cache_memory_bytes=8MiB"]
PROMPTS, STEPS = {"a": 20, "b": 33}, 12


def attend(q_HD: torch.Tensor, k_THD: torch.Tensor, v_THD: torch.Tensor) -> torch.Tensor:
    weights = torch.einsum("hd,thd->ht", q_HD * q_HD.shape[1] ** -0.5, k_THD).softmax(-1)
    return torch.einsum("ht,thd->hd", weights, v_THD)


def main() -> None:
    result = kvpipe.run([*REQUEST, "layout=flash_attn"])
    bound, backend = result.bound[0], result.backend
    manager = BlockManager.from_plan(result.plan)
    layers = list(bound.forward_context.values())
    H, D = layers[0].views[0].shape[2:]
    block_size = manager.config.groups[0].spec.block_size
    writes, reads = {}, {}  # layer -> its launches: strides are checked here, once
    for layer in layers:
        k, v = ((bound.buffers.buffers[view.buffer], view) for view in layer.views)
        writes[layer.name] = backend.plan_write([k, v], layer.kv_cache.dtype)
        reads[layer.name] = backend.plan_attention(k, v, H, block_size, D**-0.5)
    remembered = {(layer.name, r): [[], []] for layer in layers for r in PROMPTS}

    def step(requests: list[str], counts: list[int], grant) -> float:
        manager.begin_step()
        grant()
        slots = torch.from_numpy(manager.slot_mapping(0).copy())
        tables = torch.from_numpy(manager.block_table(0, requests).astype("int32"))
        worst = 0.0
        for layer in layers:
            k, v = (torch.randn(len(slots), H, D).to(layer.kv_cache.dtype) for _ in "kv")
            writes[layer.name](k, slots, v)
            lists = [remembered[layer.name, r] for r in requests]
            for kept, k_r, v_r in zip(lists, k.split(counts), v.split(counts), strict=True):
                kept[0].append(k_r)
                kept[1].append(v_r)
            held = [sum(map(len, kept[0])) for kept in lists]
            q = torch.randn(len(requests), H, D)
            paged = reads[layer.name](q, tables, torch.tensor([[0, T] for T in held]), max(held))
            for q_r, read, kept in zip(q, paged, lists, strict=True):
                plain = attend(q_r, *(torch.cat(part).float() for part in kept))
                worst = max(worst, float((read - plain).abs().max()))
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
    print(f"attention through block tables differs from plain lists by {worst:.1e}")
    assert worst < 1e-5  # float32 sums in another order


if __name__ == "__main__":
    main()
