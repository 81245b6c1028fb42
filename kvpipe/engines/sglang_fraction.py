"""SGLang 0.5.23: its default share of the memory that is free before a model loads.

Source: `memory_hook.py` and `cuda_graph_hook.py` of the wheel, run against this file
(tools/live/sglang_planner.py). MiB throughout, as the engine counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

LEAST_TOKENS = 2048  # of a step, for the reserve
META_MIB = 512.0
MIB_A_TOKEN = 1.5
PARALLEL_MIB = 128  # for each rank
GRAPH_MIB = 2  # for each request of a decode batch
PREFILL_GRAPH_MIB = 8  # for each captured prompt size
LATENT_PREFILL_MIB = 1536  # all of them, of a model with latent rows
LARGE_MIB, LARGE_RESERVE_MIB = 60 * 1024, 10 * 1024

# Device MiB below -> tokens of a prompt step, decode batch with fewer than 4 ranks, with more.
_BY_DEVICE: tuple[tuple[float, int, int, int], ...] = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
    (inf, 16384, 512, 512),
)


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """chunk: tokens of a prompt step (chunked_prefill_size). decode_batch: requests of the largest
    captured decode graph."""

    chunk: int
    decode_batch: int


def step_sizes(
    device_mib: float, tp: int, chunk: int | None = None, max_requests: int | None = None
) -> StepSizes:
    """chunk, max_requests: as set (None: the engine's own)."""
    own = next(row for row in _BY_DEVICE if device_mib < row[0])
    batch = own[2] if tp < 4 else own[3]
    return StepSizes(
        chunk=own[1] if chunk is None else chunk,
        decode_batch=batch if max_requests is None else min(batch, max_requests),
    )


def prefill_sizes(largest: int) -> Iterator[int]:
    """Prompt sizes that graphs are captured for."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256))
    for first, stop, step in (*steps, (4608, largest + 1, 512)):
        yield from (size for size in range(first, stop, step) if size <= largest)


def reserve_mib(
    sizes: StepSizes,
    device_mib: float,
    *,
    ranks: int,
    is_latent: bool,
    prefill_graphs: bool,
    decode_graphs: bool,
) -> float:
    """What is kept out of the static share: a step's activations and the graphs. ranks: TP x PP."""
    kept = META_MIB + MIB_A_TOKEN * max(sizes.chunk, LEAST_TOKENS) + PARALLEL_MIB * ranks
    if decode_graphs:
        kept += GRAPH_MIB * sizes.decode_batch
    if prefill_graphs and is_latent:
        kept += LATENT_PREFILL_MIB
    elif prefill_graphs:
        kept += PREFILL_GRAPH_MIB * sum(1 for _ in prefill_sizes(sizes.chunk))
    return max(kept, LARGE_RESERVE_MIB) if device_mib > LARGE_MIB else kept


def static_fraction(
    sizes: StepSizes,
    device_mib: float,
    *,
    tp: int = 1,
    pp: int = 1,
    is_latent: bool = False,
    graphs: bool = True,
) -> float:
    """mem_fraction_static where it is not set. Prompt graphs are off with several stages."""
    kept = reserve_mib(
        sizes,
        device_mib,
        ranks=tp * pp,
        is_latent=is_latent,
        prefill_graphs=graphs and pp == 1,
        decode_graphs=graphs,
    )
    return round((device_mib - kept) / device_mib, 3)


def left_for_pools(before: float, after: float, fraction: float) -> float:
    """Of the memory that was free before and after a model was loaded, in one unit: what a share
    leaves for the pools. Negative: nothing, and the engine says "Not enough memory"."""
    return after - before * (1 - fraction)
