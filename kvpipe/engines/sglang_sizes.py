"""SGLang 0.5.23: bytes -> tokens of its pools, states, and requests at once.

Source: `pool_configurator.py` and `kv_cache_configurator.py` of the wheel, run against this file
(tools/live/sglang_planner.py). Every pool allocates a page more than it hands out.
"""

from __future__ import annotations

from dataclasses import dataclass

EVICTION_INTERVAL = 128  # tokens between two looks at what left a window
LEAST_REQUESTS, MOST_REQUESTS = 2048, 4096  # of the engine's own limit
SPECULATIVE_REQUESTS = 48  # the limit where tokens are drafted and none is set


def aligned(tokens: int, page: int) -> int:
    return tokens // page * page


def full_tokens(budget: int, cell: float, page: int) -> int:
    """One pool of every layer. cell: bytes of a token."""
    return aligned(int(budget // cell), page)


def draft_cell(cell: int, layers: int, draft_layers: int) -> int:
    """Bytes of a token in the draft's layers, priced as the target's."""
    return int(cell * draft_layers / layers) if layers else 0


@dataclass(frozen=True, kw_only=True)
class TwoPools:
    """Tokens of the full layers' pool (0: there are none) and of the windows'."""

    full: int
    window: int


def two_pools(budget: int, full_cell: int, window_cell: int, ratio: float, page: int) -> TwoPools:
    """Windows get `ratio` of the tokens that full layers get. Cells: bytes of a token, all layers
    of the sort."""
    if not full_cell:
        return TwoPools(full=0, window=full_tokens(budget, window_cell, page))
    full = aligned(int(budget // (full_cell + ratio * window_cell)), page)
    return TwoPools(full=full, window=aligned(int(full * ratio), page))


def window_for_requests(
    requests: int, *, window: int, chunk: int, page: int, draft_tokens: int = 0
) -> int:
    """Tokens that windows may hold at worst with that many requests: what the engine gives them
    where prefixes are not cached and the requests are set."""
    drafted = max(1, draft_tokens)
    decode = page if not draft_tokens else 2 * draft_tokens
    each = window + EVICTION_INTERVAL * drafted + page + decode
    return each * requests + 2 * chunk + page


def capped_pools(budget: int, full_cell: int, window_cell: int, cap: int, page: int) -> TwoPools:
    """The windows' pool first, the rest to the full layers."""
    window = -(-cap // page) * page
    left = max(0, budget - window * window_cell)
    return TwoPools(full=full_tokens(left, full_cell, page), window=window)


@dataclass(frozen=True, kw_only=True)
class StatePool:
    """slots: states that requests may hold. charged_bytes: with the padding slot, and the scratch
    states of drafted tokens."""

    slots: int
    charged_bytes: int


def slots_per_request(prefix_caching: bool, overlap: bool = True, extra_buffer: bool = True) -> int:
    """States a running request may need: its own, and those kept for a prefix to be found."""
    if not prefix_caching:
        return 1
    return 3 + ((2 if overlap else 1) if extra_buffer else 0)


def state_pool(
    rest: int,
    state_bytes: int,
    *,
    ratio: float,
    per_request: int,
    requests: int | None = None,
    slots: int | None = None,
    draft_tokens: int = 0,
) -> StatePool:
    """rest: bytes of states and tokens together. ratio: bytes of states over those of tokens.
    slots: as set, or what is known otherwise (None: solved for)."""
    solved = _solved(rest * ratio / (1 + ratio), state_bytes, per_request, draft_tokens)
    count = solved if slots is None else slots
    charged = (count + 1) * state_bytes
    if draft_tokens:
        running = min(max(1, requests or SPECULATIVE_REQUESTS), count // per_request)
        charged += (running + 1) * state_bytes * draft_tokens
    return StatePool(slots=count, charged_bytes=charged)


def _solved(share: float, state_bytes: int, per_request: int, draft_tokens: int) -> int:
    spare = state_bytes * (1 + draft_tokens)
    return int((share - spare) // (state_bytes * (1 + draft_tokens / per_request)))


def max_running_requests(
    tokens: int,
    context: int,
    *,
    asked: int | None = None,
    slots: int | None = None,
    per_request: int = 1,
) -> int:
    """The limit on requests at once. slots: of the state pool, where there is one."""
    own = max(min(int(tokens / context * 512), MOST_REQUESTS), LEAST_REQUESTS)
    limit = min(own if asked is None else asked, tokens // 2)
    return limit if slots is None else min(limit, slots // per_request)
