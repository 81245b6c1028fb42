"""What a log says of one start of an engine, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvpipe.logs.figures import Figure
from kvpipe.logs.load import Load
from kvpipe.logs.out_of_memory import OutOfMemory


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """One capacity line, and what was printed right after it. tokens, blocks, max_concurrency
    (requests of concurrency_len tokens, two decimals): None where the line does not say."""

    tokens: int | None = None
    blocks: int | None = None
    max_concurrency: float | None = None
    concurrency_len: int | None = None


@dataclass(frozen=True, kw_only=True)
class Said:
    """A line of the file: its number from 1, and what stands there."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class EngineLog:
    """One start of one engine (the last of the file).

    engine: vllm | sglang | llama.cpp | tensorrt-llm. version: None where no line names it. ranks:
    rank label ("TP0", "DP1 TP0", "" for lines without one) -> figure name -> figure. Names: total,
    free (of a card, at the start), requested, available_kv, weights, activations, non_torch,
    peak_torch, graphs; pools (all arrays of the cache on that rank, added up), pool_check (their
    sum as the log itself gives it), draft_weights. counts: whole numbers that belong to the engine
    (num_gpu_blocks, num_cpu_blocks, kv_tokens, concurrency_len, estimated_max_len, max_model_len,
    block_size, attention_block, tp, pp, dp, max_num_batched_tokens, max_num_seqs,
    max_mamba_cache_size, context_len). capacities:
    engine label ("", "DP0") -> its capacity line; of several by one engine the one with the fewest
    tokens. utilization: SGLang's is of the memory free before loading. padding: (layers, percent)
    of warnings. settings: the engine's own settings by kvpipe's keys. said: figure or setting ->
    the line it was last read from. starts: of this engine in the file. error: its last error, but
    for those that only point at another. left_nothing: it says that no memory was left for the
    cache. ran_out: torch's own line where a card ran out. load: its
    queue while it served. notes: what a reader should know about the file itself.
    """

    engine: str
    version: str | None = None
    ranks: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    capacities: Mapping[str, Capacity] = field(default_factory=dict)
    utilization: float | None = None
    max_concurrency: float | None = None
    needed: Figure | None = None
    kv_dtype: str | None = None
    model: str | None = None
    padding: tuple[tuple[int, float], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, Said] = field(default_factory=dict)
    starts: int = 1
    error: str = ""
    left_nothing: bool = False
    ran_out: OutOfMemory | None = None
    load: Load = Load()
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the engine ended saying that its cache is too small."""
        return self.needed is not None or "estimated_max_len" in self.counts

    @property
    def short_of(self) -> Figure | None:
        """What was free of a card, where the engine ended since it asks for more."""
        free, asked = self.least("free"), self.least("requested")
        return free if free is not None and asked is not None and free < asked else None

    @property
    def held_by_others(self) -> int:
        """Bytes of the poorest card that other processes hold, as far as the log says."""
        free, total = self.short_of, self.least("total")
        if free is not None and total is not None:
            return max(0, total.num_bytes - free.num_bytes)
        return (self.ran_out.others or 0) if self.ran_out is not None else 0

    @property
    def cache_was_sized(self) -> bool:
        """Whether the engine had settled how large its cache is."""
        return self.least("available_kv") is not None or bool(self.capacities)

    @property
    def lacking(self) -> int:
        """Bytes that were missing where a card ran out (all that was asked for, where the line does
        not say what was free); 0 where the free memory lies in pieces that are too small."""
        found = self.ran_out
        return max(0, found.asked - (found.free or 0)) if found is not None else 0

    def least(self, name: str) -> Figure | None:
        """The smallest figure of that name over the ranks: the poorest rank decides."""
        return min((rank[name] for rank in self.ranks.values() if name in rank), default=None)

    def most(self, name: str) -> Figure | None:
        return max((rank[name] for rank in self.ranks.values() if name in rank), default=None)

    def per_rank(self, name: str) -> tuple[Figure, ...]:
        """Figures of the ranks that printed it, by rank label."""
        found = {label: rank[name] for label, rank in self.ranks.items() if name in rank}
        return tuple(found[label] for label in sorted(found, key=_rank_order))

    def by_copy(self) -> dict[str, EngineLog]:
        """Data parallelism: the part of each copy ("DP0", ...) that printed a capacity of its own,
        with its own ranks; {"": this} where the log tells no copies apart."""
        copies = [label for label in self.capacities if label]
        if len(copies) < 2:
            return {"": self}
        return {copy: self._of_copy(copy) for copy in sorted(copies, key=_rank_order)}

    def _of_copy(self, copy: str) -> EngineLog:
        line = self.capacities[copy]
        mine = {
            label: figures
            for label, figures in self.ranks.items()
            if copy in label.split() or not label
        }
        counts = {"kv_tokens": line.tokens, "num_gpu_blocks": line.blocks}
        known = {name: value for name, value in counts.items() if value is not None}
        return replace(
            self,
            ranks=mine,
            counts={**self.counts, **known},
            max_concurrency=line.max_concurrency,
            capacities={copy: line},
        )


def _rank_order(label: str) -> tuple[list[int], str]:
    """PP0 TP10 after PP0 TP2."""
    digits = "".join(c if c.isdigit() else " " for c in label).split()
    return [int(number) for number in digits], label
