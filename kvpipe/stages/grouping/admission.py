"""Does one request fit, and how long may it be: bytes needed against bytes given.

Block counts never fall as a request grows longer, so the longest length that fits is found by
bisection; it is exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvpipe.engines.base import EngineRules
from kvpipe.errors import DoesNotFit
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.edges import largest
from kvpipe.stages.grouping.pool import Pool
from kvpipe.text.figures import count


@dataclass(frozen=True, kw_only=True)
class Edges:
    """longest_len: that fits, and one token more does not (None: no length does). needed_bytes: of
    a rank, with which the request fits, and with one less on any rank it does not."""

    longest_len: int | None
    needed_bytes: int


@dataclass(frozen=True, kw_only=True)
class Admission:
    """One rank: its pool and the bytes it may use. override: blocks that stand for what the memory
    gives, where the user said how many."""

    pool: Pool
    memory: int
    override: int | None = None

    @property
    def num_blocks(self) -> int | None:
        """Of the pool; None where it holds none, whatever the memory."""
        made = self.pool.num_blocks(self.memory)
        return made if made is None or self.override is None else self.override

    @property
    def rules(self) -> EngineRules:
        return self.pool.rules

    @cached_property
    def counted(self) -> list[tuple[KVCacheSpec, int]]:
        """Group specs that the check counts, and how many groups have each."""
        groups = self.pool.groups
        counted = groups[:1] if self.rules.admission == "first_group" else groups
        return list(Counter(group.spec for group in counted).items())

    @cached_property
    def usable(self) -> int:
        """Bytes that requests may hold: the null block is never handed out."""
        return self.memory - self.null_bytes

    @cached_property
    def null_bytes(self) -> int:
        return self.pool.bytes_per_block if self.rules.reserves_null_block else 0

    def blocks(self, limits: RequestLimits) -> int:
        """Blocks of one request that the check counts."""
        if self.pool.scratch:
            return self.pool.at_peak(limits).total
        bound = _bound(self.rules)
        return sum(bound(spec, limits) * times for spec, times in self.counted)

    def required_bytes(self, limits: RequestLimits) -> int:
        if self.pool.is_uniform and self.rules.admission == "first_group":
            spec = self.pool.groups[0].spec
            names = spec.stored_layers(self.pool.groups[0].layer_names)
            return sum(spec.of_layer(name).max_memory_bytes(limits) for name in names)
        return self.blocks(limits) * self.pool.bytes_per_block

    def needed_bytes(self, limits: RequestLimits) -> int:
        """Memory with which the request is admitted, and one byte less not."""
        return max(self.required_bytes(limits), 1) + self.null_bytes

    def fits(self, limits: RequestLimits) -> bool:
        return self.required_bytes(limits) <= self.usable

    def runs(self, limits: RequestLimits, num_blocks: int) -> bool:
        """Whether a request of the full length can really be held, whatever the check counts."""
        needed = self.pool.at_peak(limits).total
        return needed <= self.rules.usable_blocks(num_blocks)

    def admits(self, limits: RequestLimits) -> bool:
        """Whether an engine starts: it fits, and there is anything at all to hold requests."""
        return self.usable > 0 and self.fits(limits)

    def longest(self, limits: RequestLimits) -> int | None:
        """The longest length up to max_model_len that fits; None if not even one token does."""
        if self.usable <= 0:
            return None
        return largest(1, limits.max_model_len, lambda n: self.fits(limits.with_length(n)))


def _bound(rules: EngineRules) -> Callable[[KVCacheSpec, RequestLimits], int]:
    if rules.request_bound == "peak_blocks":
        return lambda spec, limits: spec.peak_blocks(limits)
    return lambda spec, limits: spec.max_blocks(limits)


def admit(
    ranks: Sequence[Admission], limits: RequestLimits, fit: bool, told: Edges | None = None
) -> RequestLimits:
    """The limits, with max_model_len lowered under `fit`; DoesNotFit if a rank is too small. told:
    what a refusal says, where other lengths or bytes have other groups (None: these decide)."""
    needed = tuple(rank.needed_bytes(limits) for rank in ranks)
    if fit:
        limits = _fitted(ranks, limits, needed, told)
    failing = [rank for rank in ranks if not (_is_exempt(rank) or rank.admits(limits))]
    if failing:
        longest = longest_everywhere(ranks, limits)
        none = (rank for rank in ranks if not _is_exempt(rank) and not rank.longest(limits))
        worst = failing[0] if longest else next(none)
        raise _too_small(worst, limits, needed, ranks, longest, told)
    return limits


def _fitted(
    ranks: Sequence[Admission],
    limits: RequestLimits,
    needed: tuple[int, ...],
    told: Edges | None,
) -> RequestLimits:
    lengths = [rank.longest(limits) for rank in ranks]
    if None in lengths:
        rank = ranks[lengths.index(None)]
        raise _too_small(rank, replace(limits, max_model_len=1), needed, ranks, None, told)
    return limits.with_length(min(n for n in lengths if n))


def _is_exempt(rank: Admission) -> bool:
    """A rank without a cache, where the engine lets it be."""
    return not rank.pool.groups or (rank.pool.is_empty and rank.rules.empty_rank == "allowed")


def longest_everywhere(ranks: Sequence[Admission], limits: RequestLimits) -> int | None:
    """The longest length that every rank admits; None where some rank admits none."""
    lengths = [rank.longest(limits) for rank in ranks if not _is_exempt(rank)]
    return None if None in lengths else min((n for n in lengths if n), default=None)


def _too_small(
    rank: Admission,
    limits: RequestLimits,
    needed: tuple[int, ...],
    ranks: Sequence[Admission],
    longest: int | None,
    told: Edges | None,
) -> DoesNotFit:
    """What one request needs, what is there, the longest that fits, and which length and batch
    were planned and fit (other settings: answers/remedies.py). The bytes said are those to give:
    with the null block, where the engine keeps one."""
    if longest:  # the rank that allows the shortest length decides
        counted = [each for each in ranks if not _is_exempt(each)]
        rank = min(counted, key=lambda each: each.longest(limits) or 0)
    have = max(0, rank.memory)
    page = rank.pool.bytes_per_block or 1
    where = f" on rank {ranks.index(rank)}" if len(ranks) > 1 else ""
    blocks, null = rank.blocks(limits), ""
    if rank.null_bytes:
        blocks, null = blocks + 1, ", the null block included"
    one = f"scheduler.max_model_len: one request of {count(limits.max_model_len, 'token')} needs"
    if told is not None:
        needed_text, have_text = _told_apart(told.needed_bytes, have)
        needs = f"{one} {needed_text}{null}{where}, {have_text} are there."
        needed, runs = _no_more_than(told.needed_bytes, needed), told.longest_len
    else:
        needed_text, have_text = _told_apart(rank.needed_bytes(limits), have)
        needs = (
            f"{one} {count(blocks, 'block')} ({needed_text}{null}){where}, "
            f"{have // page:,} {'fits' if have // page == 1 else 'fit'} ({have_text})."
        )
        runs = longest_that_runs(ranks, limits) if longest else None
    return DoesNotFit(
        needs,
        knob=_advice(limits, ranks, runs),
        needed_bytes=needed,
        available_bytes=tuple(each.memory for each in ranks),
        null_block_bytes=tuple(each.null_bytes for each in ranks),
        longest_len=runs,
        admitted_len=longest,
    )


def _no_more_than(most: int, needed: tuple[int, ...]) -> tuple[int, ...]:
    """Of each rank, the ranks that need most set to `most`."""
    top = max(needed)
    return tuple(most if each == top or each > most else each for each in needed)


def _told_apart(needed: int, have: int) -> tuple[str, str]:
    """Both sizes, with as many digits as it takes to see that they differ."""
    for decimals in (1, 2, 3):
        short = short_size(needed, decimals), short_size(have, decimals)
        if short[0] != short[1]:
            return short
    return f"{needed:,} bytes", f"{have:,} bytes"


def _advice(limits: RequestLimits, ranks: Sequence[Admission], shorter: int | None) -> str:
    ways = []
    if shorter:
        ways.append(f"Lower it to {shorter:,}")
    if batch := smaller_batch(ranks, limits):
        ways.append(f"lower scheduler.max_num_batched_tokens to {batch:,}")
    if not ways:
        return "No length fits"
    line = ", or ".join(ways)
    return line if ways[0].startswith("Lower") else f"No length fits: {line}"


def longest_that_runs(ranks: Sequence[Admission], limits: RequestLimits) -> int | None:
    """The longest length that every rank admits and can hold; None where there is none. An engine
    may admit a length that it can never schedule."""
    admitted = longest_everywhere(ranks, limits)
    if admitted is None:
        return None
    common = common_blocks(ranks) or 0
    return largest(
        1,
        admitted,
        lambda n: all(each.runs(limits.with_length(n), common) for each in ranks),
    )


def common_blocks(ranks: Sequence[Admission]) -> int | None:
    """Blocks that every rank gets: those of the poorest. None: nothing is stored on any."""
    return min((num for each in ranks if (num := each.num_blocks) is not None), default=None)


def smaller_batch(ranks: Sequence[Admission], limits: RequestLimits) -> int | None:
    """The largest halving of max_num_batched_tokens (down to 256) with which the whole length fits
    on every rank: tokens in flight are held beside a window. None if no batch budget does it."""
    batch = limits.max_num_batched_tokens // 2
    while batch >= 256:
        fewer = replace(limits, max_num_batched_tokens=batch)
        if longest_that_runs(ranks, fewer) == limits.max_model_len:
            return batch
        batch //= 2
    return None


def short_size(num_bytes: int, decimals: int = 1) -> str:
    """Bytes as a refusal says them, with one decimal: 96.0 MiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:,.{decimals}f} {unit}"
    return f"{num_bytes:,} bytes"
