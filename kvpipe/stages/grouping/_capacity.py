"""What a plan really holds: every group counted, the null block set aside, peak and steady."""

from __future__ import annotations

from collections import Counter
from math import floor

from kvpipe.cache.plan import Capacity, GroupDemand, KVCacheConfig
from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.edges import largest
from kvpipe.stages.grouping.scratch import stepped


def true_capacity(
    config: KVCacheConfig, limits: RequestLimits, rules: EngineRules
) -> Capacity | None:
    """Of one rank's config; None when a request stores nothing."""
    specs = Counter(group.spec for group in config.groups)
    each = [group.spec for group in config.groups]
    length, width = limits.max_model_len, config.bytes_per_block
    usable = rules.usable_blocks(config.num_blocks)
    stepwise = stepped(each, config.scratch, limits)
    steadies = {spec: spec.steady_blocks(length, limits) for spec in specs}
    peak = stepwise.total
    steady = sum(steadies[spec] * times for spec, times in specs.items())
    if not peak or not width:
        return None
    fixed, slope = _cost(specs, limits)
    return Capacity(
        usable_blocks=max(0, usable),
        request_len=length,
        demands=tuple(
            GroupDemand(
                kind=group.spec.kind,
                peak_blocks=most,
                steady_blocks=steadies[group.spec],
            )
            for group, most in zip(config.groups, stepwise.groups, strict=True)
        ),
        scratch_blocks=stepwise.scratch,
        peak_bytes=peak * width,
        steady_bytes=steady * width,
        requests_at_peak=max(0, usable) // peak,
        requests_steady=_reached(specs, limits, usable, steady, (fixed, slope)),
        longest_request=largest(
            1,
            length,
            lambda n: stepped(each, config.scratch, limits.with_length(n)).total <= usable,
        )
        or 0,
        bytes_fixed=fixed * width,
        bytes_per_token=slope * width,
    )


# Tokens that are looked at for the step of a decoding request that holds most.
_LOOKED_AT = 1 << 16


def _reached(
    specs: Counter[KVCacheSpec],
    limits: RequestLimits,
    usable: int,
    steady: int,
    cost: tuple[int, float],
) -> int:
    """Requests that decode at max_model_len together. The last to get there passes steps that hold
    more than the last one does (a state on both sides of a boundary, a window over one block more),
    while the others hold theirs."""
    requests = max(0, usable) // max(1, steady)
    left = usable - (requests - 1) * steady  # for the last of them
    if not requests or left >= _bound(cost, limits.max_model_len):
        return requests
    left_alone = usable - _most_held(specs, limits, cost)
    return 0 if left_alone < 0 else min(requests, 1 + left_alone // max(1, steady))


def _most_held(specs: Counter[KVCacheSpec], limits: RequestLimits, cost: tuple[int, float]) -> int:
    """Blocks of a decoding request in the step up to max_model_len that holds most. Exact where
    lengths below those looked at cannot hold more, as with full attention; else from above."""
    most, length = 0, limits.max_model_len
    last = max(0, length - _LOOKED_AT)
    for tokens in range(length, last, -1):
        if most >= _bound(cost, tokens):
            return most
        held = sum(spec.steady_blocks(tokens, limits) * times for spec, times in specs.items())
        most = max(most, held)
    return max(most, _bound(cost, last)) if last else most


def _bound(cost: tuple[int, float], length: int) -> int:
    """No decoding request of at most that many tokens holds more blocks."""
    fixed, slope = cost
    return floor(fixed + slope * length + 1e-9)


def _cost(specs: Counter[KVCacheSpec], limits: RequestLimits) -> tuple[int, float]:
    """Blocks of one request while decoding: at most fixed + slope * length."""
    costs = [(spec.steady_cost(limits), times) for spec, times in specs.items()]
    return (
        sum(fixed * times for (fixed, _), times in costs),
        sum(slope * times for (_, slope), times in costs),
    )
