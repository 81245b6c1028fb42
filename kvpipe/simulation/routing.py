"""Which replica serves a request: the parts of a trace, one a replica.

`round_robin`: in turn. `prefix`: where the most of its prompt is known already, as a router knows
it that remembers whom it sent what; but not to a replica that was sent far more than another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvpipe.simulation.traces.base import TraceRequest

# A replica is full when it was sent this many times the tokens of the least loaded, and more than
# this many beyond them: a router that follows prefixes alone sends everything to one.
MOST_TIMES, MOST_BEYOND = 1.25, 65536

Parts = list[list[TraceRequest]]


def round_robin(requests: Sequence[TraceRequest], replicas: int) -> Parts:
    return [list(requests[first::replicas]) for first in range(replicas)]


def by_prefix(requests: Sequence[TraceRequest], replicas: int) -> Parts:
    """Each part in order of arrival."""
    parts: Parts = [[] for _ in range(replicas)]
    sent = [0] * replicas
    knows: dict[int, set[int]] = {}  # prefix id -> the replicas that were sent it
    for request in requests:
        least = min(range(replicas), key=sent.__getitem__)
        known = _longest_known(request, knows) - _full(sent, sent[least])
        chosen = min(known, key=sent.__getitem__) if known else least
        parts[chosen].append(request)
        sent[chosen] += request.prompt_tokens + request.output_tokens
        for prefix in request.prefix_ids:
            knows.setdefault(prefix, set()).add(chosen)
    return parts


def _longest_known(request: TraceRequest, knows: Mapping[int, set[int]]) -> set[int]:
    """The replicas that were sent the longest part of the prompt."""
    return next((knows[p] for p in reversed(request.prefix_ids) if p in knows), set())


def _full(sent: Sequence[int], least: int) -> set[int]:
    most = max(MOST_TIMES * least, least + MOST_BEYOND)
    return {replica for replica, tokens in enumerate(sent) if tokens > most}


ROUTINGS: Mapping[str, Callable[[Sequence[TraceRequest], int], Parts]] = {
    "round_robin": round_robin,
    "prefix": by_prefix,
}
