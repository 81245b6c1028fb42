"""What a plan promises, held against what keeps it: the block manager, the accounts, the YAML.

Each function gives what is wrong with one request, or "".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from fuzz.requests import DEFAULT_MEMORY, Settings, planned, prepared, raw_of
from kvpipe.blocks import BlockManager, OutOfBlocks
from kvpipe.cache.plan import KVCacheConfig, Plan
from kvpipe.errors import ConfigError
from kvpipe.pipeline import make_backend, prepare, profile_ranks
from kvpipe.report.accounts import replicas_of, split_bytes
from kvpipe.request.plain_yaml import dump_yaml, load_yaml
from kvpipe.specs.base import RequestLimits
from kvpipe.specs.runs import num_indices

MOST_BLOCKS = 2_000  # of one request that is driven through the manager
SEEN: Counter[str] = Counter()  # how often the manager was asked, and how often to the block


def the_manager_takes_what_is_printed(settings: Settings) -> str:
    """The requests that are said to fit at their peak are accepted, and one more is refused, in
    pools where the last request fits to the block and where one block is missing."""
    plan = planned(settings)
    if not isinstance(plan, Plan) or (cap := plan.capacity) is None:
        return ""
    peak = sum(demand.peak_blocks for demand in cap.demands)
    if not cap.requests_at_peak or peak > MOST_BLOCKS:
        return ""
    null = plan.num_blocks - cap.usable_blocks
    width = max(rank.config.bytes_per_block for rank in plan.ranks)
    for requests, left in ((1, 0), (2, peak - 1)):
        small = planned(settings, memory=width * (null + requests * peak + left))
        if isinstance(small, Plan) and (said := _not_kept(small, requests, peak, null)):
            return said
    return ""


def _not_kept(plan: Plan, requests: int, peak: int, null: int) -> str:
    cap = plan.capacity
    assert cap is not None
    if cap.requests_at_peak != requests:
        return f"{cap.requests_at_peak} are said to fit in room for {requests}"
    config, limits = _widest(plan), plan.limits
    held, (computed, new) = _worst_step(config, limits, peak)
    manager = BlockManager(config, limits, max_num_requests=requests + 1)
    try:
        for number in range(requests):
            _drive(manager, number, computed, new)
    except OutOfBlocks as error:
        return f"{requests} are said to fit, and number {number + 1} is refused: {error}"
    SEEN["to the block" if held == peak else "below the sum of the groups' peaks"] += 1
    try:
        _drive(manager, requests, computed, new)
    except OutOfBlocks:
        return ""
    if held < peak or null == 0:  # no one step is the worst of every group: see docs/capacity.md
        return ""
    return f"{requests} are said to fit, and one more is accepted"


def _widest(plan: Plan) -> KVCacheConfig:
    return max((rank.config for rank in plan.ranks), key=lambda config: config.bytes_per_block)


def _drive(manager: BlockManager, request: int, computed: int, new: int) -> None:
    """A request that has stored so many tokens, and then takes one step of `new`."""
    most = manager.limits.tokens_in_flight
    manager.add_request(request)
    for at in range(0, computed, most):
        manager.begin_step()
        manager.allocate(request, min(most, computed - at))
    manager.begin_step()
    manager.allocate(request, new)


def _worst_step(
    config: KVCacheConfig, limits: RequestLimits, peak: int
) -> tuple[int, tuple[int, int]]:
    """The most blocks that one step was found to hold, and that step: (tokens stored, new)."""
    best, step = 0, (0, 1)
    for computed, new in _steps(config, limits):
        held = sum(
            num_indices(group.spec.resident(computed, new, limits)) for group in config.groups
        )
        if held > best:
            best, step = held, (computed, new)
        if best >= peak:
            break
    return best, step


def _steps(config: KVCacheConfig, limits: RequestLimits) -> Iterator[tuple[int, int]]:
    """Large steps that end near the end or begin near the edge of a bound: where peaks are."""
    longest, most = limits.max_model_len, limits.tokens_in_flight
    news = [new for new in range(min(longest, most), max(0, min(longest, most) - 40), -1)]
    for new, before in product(news, range(40)):
        if (computed := longest - new - before) >= 0:
            yield computed, new
    sizes = {size for g in config.groups if g.spec.bound for size in g.spec.bound.sizes.values()}
    for size, new, off in product(sizes, (*news[:2], 1), range(-2, 3)):
        for computed in range(max(0, size + off), longest - new + 1, size):
            yield computed, new


def the_causes_add_up_to_the_memory(settings: Settings) -> str:
    """On every rank, at both loads, no cause below nothing."""
    request, plan = prepared(settings), planned(settings)
    if request is None or not isinstance(plan, Plan):
        return ""
    profile = profile_ranks(request, make_backend(request.config, request.resolved.backend))
    memory = settings.get("memory", DEFAULT_MEMORY)
    ranks = [
        replace(rank, available_kv=replace(rank.available_kv, num_bytes=memory))
        for rank in profile.ranks
    ]
    resolved = request.resolved
    for account in split_bytes(
        plan, replace(profile, ranks=tuple(ranks)), resolved.max_num_seqs, replicas_of(resolved)
    ):
        for load in (account.peak, account.steady):
            if sum(load.values()) != account.total_bytes:
                return f"{sum(load.values()):,} bytes of causes in {account.total_bytes:,}: {load}"
            if min(load.values()) < 0:
                return f"a cause below nothing: {load}"
    return ""


def the_saved_config_is_the_same_request(settings: Settings) -> str:
    raw = raw_of(settings)
    if (back := load_yaml(dump_yaml(raw))) != raw:
        return f"written {raw}, read {back}"
    try:
        one, other = prepare(raw), prepare(back)
    except ConfigError:
        return ""
    return "" if one.resolved == other.resolved else "resolved otherwise"
