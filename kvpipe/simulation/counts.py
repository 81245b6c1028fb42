"""What a replay counts: requests and tokens by what became of them, and where the pool ran dry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RanDry:
    """The first time that the pool could not serve a step. token: how many tokens had been stored
    since the start, recomputed ones included; held: tokens stored at that moment."""

    token: int
    held: int
    time_s: float
    running: int
    reason: str


@dataclass
class Counts:
    """Requests, and tokens of prompts, by what became of them."""

    finished: int = 0
    too_long: int = 0
    never_fit: int = 0
    cut_short: int = 0
    preemptions: int = 0
    stored_tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefix_blocks: int = 0
    hit_prefix_blocks: int = 0
