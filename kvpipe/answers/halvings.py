"""Settings of a step in halves, and of a cache in fewer bits: what is tried where room is short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvpipe.pipeline import Prepared

SEQS, BATCH = "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"
OLDEST_FP8 = (8, 9)  # compute capability of the first cards with 8-bit floats
_SMALLEST_BATCH, _FEWEST_SEQS = 256, 16


def smaller_batches(prepared: Prepared) -> Iterator[Mapping[str, Any]]:
    """The largest first; engines take no fewer tokens than requests."""
    batch = prepared.resolved.limits.max_num_batched_tokens
    least = max(_SMALLEST_BATCH, prepared.resolved.max_num_seqs)
    while (batch := batch // 2) >= least:
        yield {BATCH: batch}


def fewer_seqs(prepared: Prepared, asked: int = 1) -> Iterator[Mapping[str, Any]]:
    """Down to 16, or to those that were asked for: these exactly at the end."""
    seqs, least = prepared.resolved.max_num_seqs, asked if asked > 1 else _FEWEST_SEQS
    while (seqs := seqs // 2) >= least:
        yield {SEQS: seqs}
        if seqs == least:
            return
    if asked > 1 and seqs < asked < 2 * seqs + 2:
        yield {SEQS: asked}


def has_fp8(prepared: Prepared) -> bool:
    """Whether the card has 8-bit floats."""
    return (prepared.resolved.device.compute_capability or (0, 0)) >= OLDEST_FP8


def caches_of_8_bits(prepared: Prepared) -> Iterator[Mapping[str, Any]]:
    """Where the card has such floats and the cache is of others."""
    if has_fp8(prepared) and not prepared.resolved.cache_dtype.startswith("fp8"):
        yield {"cache.cache_dtype": "fp8"}
