"""More room for the same request, each way planned: a higher share of the card, an 8-bit cache,
8-bit weights. The last two change what the model computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvpipe.answers.log_memory import share_is_known
from kvpipe.answers.remedies import Advice, advice
from kvpipe.pipeline import Prepared

OLDEST = (8, 9)  # compute capability of the first cards with 8-bit floats
SHARE = 0.95  # of the card: what stays is for what grows after the cache was sized
_LENGTH = "scheduler.max_model_len"


def more_room(prepared: Prepared) -> Iterator[Advice]:
    """Ways with which the request fits; where it does not, a longer one than without them."""
    if prepared.resolved.device.type == "cpu":
        return
    longest = _longest(prepared, {})
    for changes in _changes(prepared):
        found = advice(prepared, changes, "")
        if found is None and (length := _longest(prepared, changes)) > longest > 0:
            found = advice(prepared, {**changes, _LENGTH: length}, "")
        if found is not None:
            yield found


def _changes(prepared: Prepared) -> Iterator[Mapping[str, Any]]:
    resolved = prepared.resolved
    is_estimate = prepared.config.plugins["profiling"].name == "estimate"
    is_given = is_estimate or share_is_known(prepared)
    is_free = not prepared.raw["profiling"].get("other_instances_bytes")
    if is_given and is_free and resolved.gpu_memory_utilization < SHARE:
        yield {"cache.gpu_memory_utilization": SHARE}
    capability = resolved.device.compute_capability
    if capability is None or capability < OLDEST:
        return
    if not resolved.cache_dtype.startswith("fp8"):
        yield {"cache.cache_dtype": "fp8"}
    if not resolved.model.quantized_with and not resolved.model.load_as:
        yield {"weights": "fp8"}


def _longest(prepared: Prepared, changes: Mapping[str, Any]) -> int:
    """Tokens; 0 where nothing fits."""
    found = advice(prepared, {**changes, _LENGTH: "auto"}, "")
    return found.plan.limits.max_model_len if found is not None else 0
