"""What an engine's log says, as figures with the rounding they were printed with.

A figure printed as "3.81 GiB" stands for any number of bytes from 3.805 to 3.815 GiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

GIB = 2**30
LARGEST = 2**63  # bytes, blocks or tokens: what is printed as more is no figure
_NUMBER = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{0,30})?|-?\.[0-9]{1,30}")
_WHOLE = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,19}")


def number(text: str) -> float:
    """A decimal number of a log line; ValueError for what only looks like one."""
    if not _NUMBER.fullmatch(text) or abs(float(text)) >= LARGEST:
        raise ValueError(text)
    return float(text)


def whole_number(text: str) -> int:
    """A count of a log line, with or without commas; ValueError for what only looks like one."""
    digits = text.rstrip(",")  # of the sentence
    if not _WHOLE.fullmatch(digits) or (value := int(digits.replace(",", ""))) >= LARGEST:
        raise ValueError(text)
    return value


@dataclass(frozen=True, kw_only=True, order=True)
class Figure:
    """num_bytes: as printed. low, high: the least and the most it can stand for, in bytes."""

    num_bytes: int
    low: int
    high: int

    @classmethod
    def printed(cls, text: str, unit: int = GIB) -> Figure:
        """Of the digits of a log line: half a unit of the last digit either way. ValueError for
        what only looks like a number."""
        if abs(number(text)) * unit >= LARGEST:
            raise ValueError(text)
        value = Decimal(text)
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        half = Decimal(1).scaleb(exponent) / 2 if exponent or unit > 1 else Decimal(0)
        return cls(
            num_bytes=round(value * unit),
            low=-round(-(value - half) * unit),
            high=round((value + half) * unit),
        )

    @classmethod
    def exact(cls, num_bytes: int) -> Figure:
        return cls(num_bytes=num_bytes, low=num_bytes, high=num_bytes)


@dataclass(frozen=True, kw_only=True)
class EngineLog:
    """One start of an engine.

    engine: vllm | sglang. version: None where no line names it. ranks: rank label ("TP0", "" for
    lines without one) -> figure name -> the last figure printed there. Names: total, requested,
    available_kv, weights, activations, non_torch, peak_torch, graphs, and for SGLang k, v, kv,
    conv, ssm, before_load, after_load, after_pool. counts: whole numbers that belong to the engine
    (num_gpu_blocks, num_cpu_blocks, kv_tokens, concurrency_len, estimated_max_len, max_model_len,
    block_size, tp, pp, max_num_batched_tokens, max_num_seqs, max_mamba_cache_size, context_len).
    utilization: SGLang's is of the memory free before loading. padding: (layers, percent) of
    warnings.
    """

    engine: str
    version: str | None = None
    ranks: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    utilization: float | None = None
    max_concurrency: float | None = None
    needed: Figure | None = None
    kv_dtype: str | None = None
    model: str | None = None
    padding: tuple[tuple[int, float], ...] = ()

    def least(self, name: str) -> Figure | None:
        """The smallest figure of that name over the ranks: the poorest rank decides."""
        return min((rank[name] for rank in self.ranks.values() if name in rank), default=None)

    def most(self, name: str) -> Figure | None:
        return max((rank[name] for rank in self.ranks.values() if name in rank), default=None)

    def per_rank(self, name: str) -> tuple[Figure, ...]:
        """Figures of the ranks that printed it, by rank label."""
        found = {label: rank[name] for label, rank in self.ranks.items() if name in rank}
        return tuple(found[label] for label in sorted(found, key=_rank_order))


def _rank_order(label: str) -> tuple[list[int], str]:
    """PP0 TP10 after PP0 TP2."""
    digits = "".join(c if c.isdigit() else " " for c in label).split()
    return [int(number) for number in digits], label
