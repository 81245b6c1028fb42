"""A plan -> the lines that stand beside the engine's own: what really fits, and where bytes go."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.cache.plan import Capacity, Plan
from kvpipe.report.accounts import CAUSES, KV_CAUSES, split_bytes
from kvpipe.stages.profiling.base import MemoryItem, MemoryProfile, RankMemory
from kvpipe.text.figures import count, percent, size


def report_lines(made: Plan) -> Iterator[str]:
    """Of the first worker, whose line the engine prints, too."""
    held = made.capacity
    if held is None:
        yield "nothing is stored"
        return
    yield from _capacity(made, held)
    rank = split_bytes(made, _cache_alone(made))[0]
    for load, spent in (("peak", rank.peak), ("steady", rank.steady)):
        parts = [
            f"{CAUSES[cause]} {percent(spent[cause], rank.total_bytes)}"
            for cause in KV_CAUSES
            if spent[cause]
        ]
        yield f"bytes of the cache, {load}: {'; '.join(parts)}"


def _capacity(made: Plan, held: Capacity) -> Iterator[str]:
    printed = made.printed[0].num_tokens or 0
    yield (
        f"holds {_tokens(held, held.steady_bytes, made):,} tokens in the steady state, "
        f"{_tokens(held, held.peak_bytes, made):,} with every request at its peak; the engine "
        f"prints {printed:,}"
    )
    yield (
        f"requests of {held.request_len:,} tokens: {held.requests_steady:,} decode at once "
        f"({size(held.steady_bytes)} each), {held.requests_at_peak:,} read their prompts at once "
        f"({size(held.peak_bytes)} each)"
    )
    yield f"{count(held.usable_blocks, 'block')} for requests, 1 is the null block"


def _tokens(held: Capacity, request_bytes: int, made: Plan) -> int:
    """Of requests of the full length, parts of one included."""
    if not request_bytes:
        return 0
    usable = held.usable_blocks * made.ranks[0].config.bytes_per_block
    return usable * held.request_len // request_bytes


def _cache_alone(made: Plan) -> MemoryProfile:
    """Accounts of the cache's memory alone: what else the worker holds is the engine's matter."""
    ranks = []
    for number, rank in enumerate(made.ranks):
        item = MemoryItem(
            name="KV cache", num_bytes=rank.available_bytes, how="exact", source="the engine"
        )
        ranks.append(
            RankMemory(rank=number, total=item, requested=item, charged=(), available_kv=item)
        )
    return MemoryProfile(plugin="vllm", ranks=tuple(ranks))
