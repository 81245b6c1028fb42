"""Serve requests on a bound cache: prefill, decode, fork, swap out and in; every value checked.

    python examples/decode_loop.py

The plan is Gemma 3's: full and sliding-window layers over one pool of blocks. There is no model:
each token's K and V are numbers that name its layer, request and position, so that a row in the
wrong place cannot look right.
"""

from __future__ import annotations

from random import Random

import torch

import kvpipe
from kvpipe.blocks import BlockManager
from kvpipe.blocks.transfer import BlockMover

REQUEST = ["model=gemma3_1b", "device=cpu", "backend=torch", "cache.kv_cache_memory_bytes=32MiB"]


def main() -> None:
    result = kvpipe.run([*REQUEST, "scheduler.max_model_len=1024", "binding.verify.enabled=false"])
    buffers, backend = result.bound[0].buffers, result.backend
    manager, mover = BlockManager.from_plan(result.plan), BlockMover(buffers)
    draw = Random(0)
    history: dict[str, list[int]] = {}  # request -> one number a stored token

    def rows(array: int, numbers: list[int], view) -> torch.Tensor:
        """[T, H, D] values of tokens; below 251, so that bfloat16 holds them exactly."""
        values = (torch.tensor(numbers) + 17 * array) % 251
        return values.to(torch.bfloat16)[:, None, None].expand(-1, *view.shape[2:])

    def write(numbers: list[int]) -> None:
        """The step's new K and V, into the slots that the manager granted."""
        for array, (layer, view) in enumerate(views()):
            slots = torch.from_numpy(manager.slot_mapping(layer.group).copy())
            backend.write_kv(buffers.buffers[view.buffer], view, rows(array, numbers, view), slots)

    def views():
        return ((layer, view) for layer in buffers.addresses.layers for view in layer.views)

    def check(request: str) -> int:
        """What each layer reads for the next token of the request is what was written."""
        numbers, compared = history[request], 0
        for array, (layer, view) in enumerate(views()):
            (table,) = torch.from_numpy(manager.block_table(layer.group, [request]))
            size = buffers.addresses.groups[layer.group].block_size
            spec = manager.config.groups[layer.group].spec
            first = spec.visible(len(numbers), manager.limits)[-1].start
            buffer = buffers.buffers[view.buffer]
            read = backend.gather(buffer, view, table, len(numbers), size)[first:]
            assert torch.equal(read, rows(array, numbers[first:], view)), (request, layer.layer)
            compared += read.numel()
        return compared

    for name, length in (("a", 700), ("b", 90)):
        manager.add_request(name)
        manager.begin_step()
        manager.allocate(name, length)
        history[name] = [draw.randrange(251) for _ in range(length)]
        write(history[name])
    manager.fork("a", "c")
    history["c"] = list(history["a"])
    manager.swap_out("b", mover.save)
    for step in range(20):
        if step == 10:
            manager.swap_in("b", mover.restore)
        batch = ["a", "c"] if step < 10 else ["a", "b", "c"]
        manager.begin_step()
        mover.copy(manager.append(batch))  # c's first token copies the block it shares with a
        numbers = [draw.randrange(251) for _ in batch]
        write(numbers)
        for name, number in zip(batch, numbers, strict=True):
            history[name].append(number)
    compared = sum(map(check, history))
    print(f"{len(history)} requests, {compared:,} numbers read back as written")
    print(manager.pool.stats())


if __name__ == "__main__":
    main()
