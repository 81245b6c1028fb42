"""The memory that a log's engine would have had with other settings: the log's figure, and what the
estimate says the change is worth.

A log is of one start. Twice the ranks hold half the weights each, a higher share of the card is all
cache: the estimate's difference between both requests is added, its error in common falls out. But
never more than the estimate's high end: a log whose weights are not the model's would promise more
than the card has.
"""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from typing import TYPE_CHECKING

from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.pipeline import Prepared, prepare, profile_ranks, profiling_request
from kvpipe.request.changed import changed
from kvpipe.request.confdir import shipped_option
from kvpipe.stages.profiling.base import MemoryProfile, RankMemory
from kvpipe.stages.profiling.estimate import EstimateProfiling
from kvpipe.text.figures import GIB

if TYPE_CHECKING:  # a request without a log needs none of them
    from kvpipe.logs.engine_log import EngineLog
    from kvpipe.logs.figures import Figure

_BYTES = "cache.kv_cache_memory_bytes"


def profile_after(prepared: Prepared, made: Prepared) -> MemoryProfile:
    """The memory of `made`, a request like `prepared` but for some settings. DoesNotFit where
    nothing is left. A start that had nothing left is a start to count from like any other."""
    is_log = made.config.plugins["profiling"].name == "log"
    if not is_log or made.config.cache.kv_cache_memory_bytes is not None:
        return profile_ranks(made)
    before, after = _estimate(prepared), _estimate(made)
    if before is None or after is None or after == before:
        return profile_ranks(made)
    profile = _as_printed(prepared, made)
    _, _, most = _estimated_range(made)
    ranks = tuple(_shifted(rank, after - before, most) for rank in profile.ranks)
    return replace(profile, ranks=ranks)


def _as_printed(prepared: Prepared, made: Prepared) -> MemoryProfile:
    """The log's own figures, for the ranks of `made`. Where it says that nothing was left, and not
    how much was lacking, the estimate of that start does, as far as it is not refuted."""
    from kvpipe.stages.profiling.log import LogProfiling

    plugin = made.config.plugins["profiling"].make(LogProfiling)
    profile: MemoryProfile = plugin.as_printed(profiling_request(made))
    log = plugin.log()
    if log.per_rank("available_kv") or log.per_rank("pools"):
        return profile
    low, best, _ = _estimated_range(prepared)
    surely = max(0, best)  # at least so much the estimate is too high
    return replace(
        profile,
        ranks=tuple(
            replace(
                rank,
                available_kv=replace(
                    rank.available_kv,
                    num_bytes=best - surely,
                    low_bytes=low - surely,
                    high_bytes=0,
                ),
            )
            for rank in profile.ranks
        ),
    )


def with_printed_size(
    prepared: Prepared, log: EngineLog | None, implied: Figure | None
) -> Prepared:
    """The request with the cache that the log's capacity line stands for (implied), where no line
    of it gives the memory: what was printed is no estimate. A size that was set stays."""
    cache = prepared.config.cache
    is_set = cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None
    if log is None or implied is None or is_set or implied.num_bytes <= 0:
        return prepared
    if log.per_rank("available_kv") or log.per_rank("pools"):
        return prepared
    try:
        made = prepare(changed(prepared.raw, {_BYTES: implied.num_bytes}))
    except KvpipeError:
        return prepared
    return replace(made, said=prepared.said, words=prepared.words, from_log=prepared.from_log)


def share_is_known(prepared: Prepared) -> bool:
    """Whether the log says the share of the card that the request has."""
    plugin = prepared.config.plugins["profiling"]
    path = getattr(plugin.options, "path", None)
    if plugin.name != "log" or not path:
        return False
    from kvpipe.logs.reading import read_file

    said = read_file(path).utilization
    return said is not None and isclose(said, prepared.resolved.gpu_memory_utilization)


def _estimate(prepared: Prepared) -> int | None:
    """Bytes of the poorest rank, negative where the estimate has none left; None where there is no
    estimate (of a CPU, of a model without a count of parameters)."""
    try:
        return min(profile_ranks(_estimating(prepared)).available_kv_bytes)
    except DoesNotFit as error:
        return min(error.available_bytes, default=None)
    except KvpipeError:
        return None


def _estimated_range(prepared: Prepared) -> tuple[int, int, int]:
    """Bytes of the poorest rank at the low end of the estimate, by its best value and at its high
    end, negative where nothing is left."""
    made = _estimating(prepared)
    plugin = made.config.plugins["profiling"].make(EstimateProfiling)
    request = profiling_request(made)
    stages = (plugin.rank_memory(stage, request) for stage in range(request.parallel.pp))
    rank = min(stages, key=lambda each: each.available_kv_bytes)
    low = rank.requested.num_bytes - sum(item.at_most for item in rank.charged)
    high = rank.requested.num_bytes - sum(item.at_least for item in rank.charged)
    return low, rank.available_kv_bytes, high


def _estimating(prepared: Prepared) -> Prepared:
    """The request without its log."""
    estimate = {**shipped_option("profiling", "estimate"), "enforce_eager": _is_eager(prepared)}
    return prepare({**prepared.raw, "profiling": estimate})


def _is_eager(prepared: Prepared) -> bool:
    from kvpipe.logs.reading import read_file

    path = getattr(prepared.config.plugins["profiling"].options, "path", None)
    return bool(path and read_file(path).settings.get("profiling.enforce_eager"))


def _shifted(rank: RankMemory, more: int, most: int) -> RankMemory:
    """more: bytes that the change is worth. most: that the card can have for a cache at all."""
    if not more:
        return rank
    was = rank.available_kv
    more = min(more, most - was.num_bytes)
    now = was.num_bytes + more
    if now <= 0:
        raise DoesNotFit(
            f"profiling.path: of the log's {was.num_bytes / GIB:.2f} GiB nothing would be left",
            available_bytes=(now,),
        )
    low, high = (None if end is None else end + more for end in (was.low_bytes, was.high_bytes))
    item = replace(
        was,
        num_bytes=now,
        how="estimated",
        source=f"{was.source}; {more / GIB:+.2f} GiB by estimate",
        low_bytes=low,
        high_bytes=high,
    )
    return replace(rank, available_kv=item)
