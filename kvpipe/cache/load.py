"""What requests ask of a cache at one moment: the one definition that every command answers for.

A load is n requests of L tokens each, prompt and output together; k of them still read their
prompts, the others decode. Its two ends have names, and so has what a server does all day:

    peak      k = n   all read their prompts at once
    running   k = 1   all decode but one, which reads its prompt
    steady    k = 0   all decode

`find` and the verdicts of `run` and `compare` are about `running`; both print all three; `replay`
plays requests through them and compares what it met with steady.

Data parallelism: copies of a server share the requests evenly, each stays with its copy, and a load
is what the fullest copy runs.
"""

from __future__ import annotations

from dataclasses import dataclass

ENDS = {
    "peak": "all reading their prompts",
    "running": "all decoding but one, which reads its prompt",
    "steady": "all decoding",
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """requests of length tokens; prefilling of them read their prompts."""

    requests: int
    length: int
    prefilling: int

    @property
    def name(self) -> str:
        """peak, running, steady, or how many read their prompts. One request that reads its prompt
        is at its peak."""
        if not self.prefilling:
            return "steady"
        if self.prefilling >= self.requests:
            return "peak"
        return "running" if self.prefilling == 1 else f"{self.prefilling:,} prefilling"

    def units(self, peak: int, steady: int) -> int:
        """Blocks (or bytes) of it, where a request takes `peak` of them while its prompt is read
        and `steady` while it decodes."""
        return self.requests * steady + self.prefilling * max(0, peak - steady)

    def to_json(self) -> dict[str, int | str]:
        return {
            "name": self.name,
            "requests": self.requests,
            "length_tokens": self.length,
            "prefilling_requests": self.prefilling,
        }


def running(requests: int, length: int) -> Load:
    return Load(requests=requests, length=length, prefilling=1)


def most_running(usable: int, peak: int, steady: int) -> int:
    """The largest n of a running load that `usable` units hold."""
    return max(0, usable - max(0, peak - steady)) // max(1, steady)


def of_a_copy(requests: int, copies: int) -> int:
    """What the fullest copy gets of requests that are spread evenly."""
    return -(-requests // copies)


def by_both(memory: int, scheduler: int | None) -> str:
    """`321 by memory, 256 by max_num_seqs`, where the scheduler runs fewer than memory holds."""
    if scheduler is None or memory <= scheduler:
        return ""
    return f"{memory:,} by memory, {scheduler:,} by max_num_seqs"
