"""Prefix hits in words: of all prompts, and of each cache group where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.simulation.hits import GroupHits
from kvpipe.simulation.result import ReplayResult
from kvpipe.text.figures import count


def hits(result: ReplayResult) -> Iterator[str]:
    """A fact each."""
    if not result.prefix_caching:
        yield "not cached (cache.enable_prefix_caching, or a group that cannot)"
        return
    counts = result.counts
    line = (
        f"{counts.hit_tokens:,} of {count(counts.prompt_tokens, 'prompt token')} cached "
        f"({100 * result.hit_rate:.1f} %)"
    )
    if (rate := result.prefix_block_hit_rate) is not None:
        line += (
            f"; {counts.hit_prefix_blocks:,} of the trace's "
            f"{count(counts.prefix_blocks, 'prefix block')} ({100 * rate:.1f} %)"
        )
    yield line
    if any(group.hit_tokens != counts.hit_tokens for group in result.prefix_groups):
        yield _apart(result.prefix_groups)


def _apart(groups: Sequence[GroupHits]) -> str:
    """What the groups of each kind would have served alone, and whose misses cut the most."""
    by_kind: dict[str, list[int]] = {}
    for group in groups:
        by_kind.setdefault(group.kind, []).append(group.hit_tokens)
    alone = ", ".join(f"{kind} {_range(tokens)}" for kind, tokens in by_kind.items())
    line = f"alone, groups would have had {alone}"
    most = max(range(len(groups)), key=lambda number: groups[number].cut_tokens)
    if not (cut := groups[most].cut_tokens):
        return line
    requests = count(groups[most].cut_requests, "request")
    limits = f"group {most} ({groups[most].kind}) limits most"
    return f"{line}; {limits}, by {count(cut, 'token')} of {requests}"


def _range(tokens: Sequence[int]) -> str:
    least, most = min(tokens), max(tokens)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
