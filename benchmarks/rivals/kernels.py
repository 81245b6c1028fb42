"""What the kernels race against, on the same bytes: memcpy and torch's own operations.

One layer of Llama-3-8B (8 KV heads of 128, bf16, blocks of 16) and 4,096 new tokens; T tokens.

    python benchmarks/rivals/kernels.py [--device cuda] [--rounds 40]

prints medians of interleaved rounds as Markdown; the first row of each group is the yardstick.
Without --device: backend=host on one thread. With it: backend=cupy, timed by CUDA events.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvpipe.backends.base import Buffer
from kvpipe.backends.gather import GatherPlan
from kvpipe.layouts.base import ArrayView

BLOCKS, BLOCK_SIZE, HEADS, WIDTH, TOKENS = 512, 16, 8, 128, 4096
ROW = HEADS * WIDTH
Rivals = dict[str, dict[str, Callable[[], Any]]]


def _views(dtype: str, itemsize: int) -> list[ArrayView]:
    """K and V of a [B, 2, N, H, D] cache."""
    page = BLOCK_SIZE * ROW * itemsize
    return [
        ArrayView(
            layer="layer", array=name, buffer=0, dtype=dtype, per_token=True, offset=index * page,
            shape=(BLOCKS, BLOCK_SIZE, HEADS, WIDTH),
            strides=(2 * page, ROW * itemsize, WIDTH * itemsize, itemsize),
        )
        for index, name in enumerate("kv")
    ]  # fmt: skip


def contenders(backend: Any) -> Rivals:
    """group -> name -> callable. Each moves the same T tokens of K and V; the cache is warm."""
    device, bf16 = backend.device, torch.bfloat16
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(TOKENS, HEADS, WIDTH, generator=generator).to(device, bf16) for _ in "kv")
    order = torch.randperm(BLOCKS, generator=generator)[: TOKENS // BLOCK_SIZE].to(device)
    in_blocks = (order[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=device)).flatten()
    scattered = torch.randperm(BLOCKS * BLOCK_SIZE, generator=generator)[:TOKENS].to(device)
    data = torch.ones(BLOCKS * 2 * BLOCK_SIZE * ROW * 2, dtype=torch.uint8, device=device)
    buffer = Buffer(num_bytes=data.numel(), data=data)
    views = _views("bfloat16", 2)
    k_cache, v_cache = (backend.array(buffer, view) for view in views)
    flat = [torch.ones(BLOCKS * BLOCK_SIZE, HEADS, WIDTH, dtype=bf16, device=device) for _ in "kv"]
    plan = backend.plan_write([(buffer, view) for view in views], bf16)
    source, target = torch.cat([k, v]), torch.ones(2 * TOKENS, HEADS, WIDTH, dtype=bf16).to(device)

    def memcpy() -> None:
        if device.type == "cpu":
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        else:
            target.copy_(source)

    def index_put(slots: torch.Tensor) -> Callable[[], None]:
        where = slots // BLOCK_SIZE, slots % BLOCK_SIZE

        def run() -> None:
            k_cache.index_put_(where, k)
            v_cache.index_put_(where, v)

        return run

    def index_copy(slots: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            flat[0].index_copy_(0, slots, k)
            flat[1].index_copy_(0, slots, v)

        return run

    groups: Rivals = {
        "write_kv, whole blocks": {
            "memcpy of the same bytes": memcpy,
            "kvpipe": lambda: plan(k, in_blocks, v),
            "torch index_put_": index_put(in_blocks),
            "torch index_copy_ (needs one contiguous pool)": index_copy(in_blocks),
        },
        "write_kv, every token elsewhere": {
            "memcpy of the same bytes": memcpy,
            "kvpipe": lambda: plan(k, scattered, v),
            "torch index_put_": index_put(scattered),
            "torch index_copy_ (needs one contiguous pool)": index_copy(scattered),
        },
    }
    groups |= _fp8(backend, buffer, k, v, in_blocks, flat)
    groups |= _gather(backend, buffer, views, order, in_blocks, (k_cache, v_cache), flat, memcpy)
    groups |= _small_gathers(backend, buffer, views[0], order, flat[0])
    for dtype, itemsize in (("bfloat16", 2), ("float16", 2), ("float32", 4)):
        groups |= _attention(backend, dtype, itemsize, order)
    groups |= _blocks(backend, buffer, views, order, k_cache)
    return groups


def _fp8(
    backend: Any, buffer: Buffer, k: Any, v: Any, slots: torch.Tensor, flat: list[Any]
) -> Rivals:
    plan = backend.plan_write([(buffer, view) for view in _views("fp8_e4m3", 1)], k.dtype, (0.5, 2))
    caches = [torch.zeros(len(flat[0]), HEADS, WIDTH, dtype=torch.uint8, device=k.device)] * 2

    def cast() -> None:
        for rows, scale, cache in ((k, 0.5, caches[0]), (v, 2.0, caches[1])):
            codes = (rows.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            cache.index_copy_(0, slots, codes.view(torch.uint8))

    return {
        "write_kv, bf16 to fp8": {
            "torch: divide, clamp, cast, index_copy_": cast,
            "kvpipe": lambda: plan(k, slots, v),
        }
    }


def _gather(
    backend: Any,
    buffer: Buffer,
    views: list[ArrayView],
    order: torch.Tensor,
    slots: torch.Tensor,
    caches: tuple[Any, Any],
    flat: list[Any],
    memcpy: Callable[[], None],
) -> Rivals:
    plans = [GatherPlan(backend, buffer, view, BLOCK_SIZE, None, 1.0) for view in views]
    table = order.to(torch.int32)
    return {
        "gather, whole blocks": {
            "memcpy of the same bytes": memcpy,
            "torch index_select of blocks": lambda: [c.index_select(0, order) for c in caches],
            "torch index_select of tokens": lambda: [c.index_select(0, slots) for c in flat],
            "torch cache[blocks]": lambda: [c[order] for c in caches],
            "kvpipe": lambda: [plan(table, TOKENS) for plan in plans],
        }
    }


def _small_gathers(
    backend: Any, buffer: Buffer, view: ArrayView, order: torch.Tensor, flat: Any
) -> Rivals:
    """Of one array: what one call costs, Python included."""
    plan, table = GatherPlan(backend, buffer, view, BLOCK_SIZE, None, 1.0), order.to(torch.int32)
    groups: Rivals = {}
    for tokens in (1, 16, 256):
        slots = torch.arange(tokens, device=order.device) + int(order[0])
        groups[f"gather of {tokens} tokens, one array"] = {
            "torch index_select of tokens": lambda slots=slots: flat.index_select(0, slots),
            "kvpipe": lambda tokens=tokens: plan(table, tokens),
        }
    return groups


def _attention(backend: Any, dtype: str, itemsize: int, order: torch.Tensor) -> Rivals:
    """One request, one query head a KV head; the dense K and V are not paid for."""
    wanted = getattr(torch, dtype)
    filled = torch.randn(BLOCKS * 2 * BLOCK_SIZE * ROW).to(order.device, wanted)
    buffer = Buffer(num_bytes=filled.nbytes, data=filled.view(torch.uint8))
    targets = [(buffer, view) for view in _views(dtype, itemsize)]
    caches = [backend.array(*target) for target in targets]
    query = torch.randn(1, HEADS, WIDTH).to(order.device, wanted)
    plan = backend.plan_attention(*targets, HEADS, BLOCK_SIZE, WIDTH**-0.5)
    tables, attend = order.to(torch.int32)[None], torch.nn.functional.scaled_dot_product_attention
    groups: Rivals = {}
    for tokens in (64, 256, 1024, 4096):
        blocks = order[: tokens // BLOCK_SIZE]
        spans = torch.tensor([[0, tokens]], device=order.device)
        k, v = (c[blocks].flatten(0, 1).transpose(0, 1)[None].contiguous() for c in caches)
        groups[f"decode attention over {tokens:,} tokens of {dtype}"] = {
            "torch sdpa, dense K and V": lambda k=k, v=v: attend(query[:, :, None], k, v),
            "torch cache[blocks] and sdpa": lambda blocks=blocks: attend(
                query[:, :, None], *(c[blocks].flatten(0, 1).transpose(0, 1)[None] for c in caches)
            ),
            "kvpipe": lambda spans=spans, tokens=tokens: plan(query, tables, spans, tokens),
        }
    return groups


def _blocks(
    backend: Any, buffer: Buffer, views: list[ArrayView], order: torch.Tensor, k_cache: Any
) -> Rivals:
    torch_table = order.to(torch.int32)[None]
    rows = torch.zeros(TOKENS, dtype=torch.int64, device=order.device)
    positions = torch.arange(TOKENS, device=order.device)

    def slots() -> torch.Tensor:
        blocks = torch_table[rows, positions // BLOCK_SIZE].long()
        return torch.where(blocks < 0, -1, blocks * BLOCK_SIZE + positions % BLOCK_SIZE)

    whole = buffer.data.view(BLOCKS, -1)

    def set_to_zero() -> None:
        whole[order] = 0

    return {
        "fill 256 blocks": {
            "torch pool[blocks] = 0": set_to_zero,
            "kvpipe": lambda: backend.fill([buffer], views, order, 0),
        },
        "slot_mapping of 4,096 tokens": {
            "torch": slots,
            "kvpipe": lambda: backend.slot_mapping(torch_table, rows, positions, BLOCK_SIZE),
        },
    }


def interleaved(group: dict[str, Callable[[], Any]], rounds: int, cuda: bool) -> dict[str, float]:
    """Median milliseconds of each, measured in turn so that all see the same noise."""
    times: dict[str, list[float]] = {name: [] for name in group}
    for warm in range(rounds + 3):
        for name, run in group.items():
            elapsed = _cuda_ms(run) if cuda else _cpu_ms(run)
            if warm >= 3:
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def _cpu_ms(run: Callable[[], Any]) -> float:
    """CPU time of this thread: a busy machine takes it away less than it takes away the clock."""
    start = time.thread_time_ns()
    run()
    return (time.thread_time_ns() - start) / 1e6


def _cuda_ms(run: Callable[[], Any]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))


def planned_launch_us(backend: Any, launches: int = 20000) -> float:
    """Best of 7: microseconds of one planned write of one token, Python included."""
    buffer = Buffer(
        num_bytes=1 << 20, data=torch.zeros(1 << 20, dtype=torch.uint8).to(backend.device)
    )
    view = ArrayView(
        layer="layer", array="k", buffer=0, dtype="bfloat16", per_token=True, offset=0,
        shape=(16, 16, 8, 128), strides=(32768, 2048, 256, 2),
    )  # fmt: skip
    plan = backend.plan_write([(buffer, view), (buffer, view)], torch.bfloat16)
    row = torch.ones(1, 8, 128, dtype=torch.bfloat16, device=backend.device)
    slot, best = torch.zeros(1, dtype=torch.int64, device=backend.device), float("inf")
    for _ in range(7):
        start = time.thread_time()
        for _ in range(launches):
            plan(row, slot, row)
        best = min(best, time.thread_time() - start)
    return best / launches * 1e6


def stand_in() -> Any:
    """backend=cupy whose launches run on the CPU, thread by thread: a rehearsal without a GPU."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "kernels"))
    from fake_cupy import FakeCupy, FakeStream

    from kvpipe.backends.cupy_ import CupyBackend

    stream = FakeStream(1)
    return CupyBackend(cupy=FakeCupy(), device=torch.device("cpu"), current_stream=lambda: stream)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda", "stand_in"), default="cpu")
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    backend: Any
    if asked.device == "cuda":
        from kvpipe.backends.cupy_ import CupyBackend

        backend = CupyBackend()
    elif asked.device == "stand_in":
        backend = stand_in()
    else:
        from kvpipe.backends.host import HostBackend

        backend = HostBackend()
    print(f"{backend.describe()}, medians of {asked.rounds} interleaved rounds\n")
    print("| operation | by | ms | x |\n|---|---|---|---|")
    for operation, group in contenders(backend).items():
        medians = interleaved(group, asked.rounds, asked.device == "cuda")
        yardstick = next(iter(medians.values()))
        for name, median in medians.items():
            print(f"| {operation} | {name} | {median:.3f} | {median / yardstick:.2f} |")
    launches = 100 if asked.device == "stand_in" else 20000
    print(f"\nPlanned launch, Python included: {planned_launch_us(backend, launches):.2f} us")


if __name__ == "__main__":
    main()
