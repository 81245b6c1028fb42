"""An engine's log -> its own memory figures, taken as given: nothing is estimated.

Each rank gets its own figure where the log tells ranks apart, else the poorest one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.logs.contradictions import contradictions
from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.figures import Figure
from kvpipe.logs.lines import no_log
from kvpipe.logs.reading import read_file
from kvpipe.notes import Note
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    device_total,
)
from kvpipe.text.figures import GIB

# Account -> the log's figures for it. Graphs captured before the cache was sized are charged.
_CHARGED = {
    "weights": ("weights",),
    "activations": ("activations",),
    "other": ("non_torch", "graphs"),
}


class LogProfiling:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        path: str | None

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        log = self.log()
        _refuse_on_this_cpu(log, request)
        available_by_rank(log, 1)
        return self.as_printed(request)

    def as_printed(self, request: ProfilingRequest) -> MemoryProfile:
        """Of a start that had nothing left for a cache, too: its figure may be negative, or, where
        none was printed, 0."""
        log = self.log()
        count = request.parallel.tp * request.parallel.pp
        ranks = tuple(
            _rank_memory(rank, log, figure, request)
            for rank, figure in enumerate(_printed_by_rank(log, count))
        )
        return MemoryProfile(
            plugin=self.options.name, ranks=ranks, log=log, notes=tuple(_notes(log))
        )

    def beside_set_by_hand(
        self, profile: MemoryProfile, request: ProfilingRequest
    ) -> MemoryProfile:
        """What the log printed is compared whatever size the user set."""
        log = self.log()
        return replace(profile, log=log, notes=tuple(_notes(log)))

    def log(self) -> EngineLog:
        """The last start in the file."""
        if self.options.path is None:
            raise no_log("null")
        return read_file(self.options.path)


def _refuse_on_this_cpu(log: EngineLog, request: ProfilingRequest) -> None:
    """A log is of another machine: its memory is not taken from a CPU that cannot spare it."""
    asked, free = log.least("available_kv"), request.device.free_bytes
    if request.device.type != "cpu" or asked is None or free is None:
        return
    if asked.num_bytes > free // 2:
        raise ConfigError(
            Problem(
                "device",
                "the device that the log is of (device=h100_80gb, ...)",
                f"this CPU: {asked.num_bytes / GIB:.2f} GiB would be more than half of its "
                "free memory",
            )
        )


def available_by_rank(log: EngineLog, num_ranks: int) -> tuple[Figure, ...]:
    """The cache memory of each rank; ConfigError where the log gives none, DoesNotFit where it is
    nothing."""
    found = _printed_by_rank(log, num_ranks)
    least = min(found)
    if least.num_bytes <= 0:
        left = f"{least.num_bytes / GIB:.2f} GiB are" if _cache_memory(log) else "nothing is"
        raise DoesNotFit(
            f"profiling.path: the log says {left} left for the cache: {_parts(log)}",
            available_bytes=(least.num_bytes,),
        )
    return found


def _printed_by_rank(log: EngineLog, num_ranks: int) -> tuple[Figure, ...]:
    found = _cache_memory(log) or ((Figure.exact(0),) if log.left_nothing else ())
    if not found:
        blocks = log.counts.get("num_gpu_blocks")
        hint = f"; it had {blocks:,} blocks" if blocks else ""
        raise ConfigError(
            Problem(
                "profiling.path",
                "a log that gives the memory of the cache",
                "none of its lines does",
                f"set cache.kv_cache_memory_bytes{hint}",
            )
        )
    return found if len(found) == num_ranks else (min(found),) * num_ranks


def _cache_memory(log: EngineLog) -> tuple[Figure, ...]:
    """Some engines say it; others say how large the arrays are that they allocated."""
    return log.per_rank("available_kv") or log.per_rank("pools")


def _notes(log: EngineLog) -> Iterator[Note]:
    for text in log.notes:
        yield Note(text=text)
    for text in contradictions(log):
        yield Note(text=f"the log contradicts itself: {text}", is_warning=True)


def _charged(log: EngineLog) -> dict[str, int]:
    """Bytes of each account. Where no activation figure is printed, it is what the peak of torch's
    memory holds beside the weights."""
    sizes = {
        name: sum(f.num_bytes for f in map(log.most, figures) if f is not None)
        for name, figures in _CHARGED.items()
    }
    peak = log.most("peak_torch")
    if not sizes["activations"] and peak is not None:
        sizes["activations"] = peak.num_bytes - sizes["weights"]
    return sizes


def _parts(log: EngineLog) -> str:
    names = ("total", "weights", "activations", "non_torch", "graphs")
    known = [(name, log.most(name)) for name in names]
    return ", ".join(f"{n} {f.num_bytes / GIB:.2f} GiB" for n, f in known if f) or "no parts given"


def _rank_memory(
    rank: int, log: EngineLog, available: Figure, request: ProfilingRequest
) -> RankMemory:
    source = f"the log of {log.engine}" + (f" {log.version}" if log.version else "")
    total = device_total(request.device)
    printed = log.least("total")
    if printed is not None:
        total = MemoryItem(name="total", num_bytes=printed.num_bytes, how="measured", source=source)
    charged = tuple(
        MemoryItem(name=name, num_bytes=num_bytes, how="measured", source=source)
        for name, num_bytes in _charged(log).items()
        if num_bytes > 0
    )
    share = log.utilization
    asked = log.least("requested")
    requested_bytes = asked.num_bytes if asked is not None else None
    if requested_bytes is None and share is not None and log.engine == "vllm":
        requested_bytes = round(total.num_bytes * share)
    item = MemoryItem(
        name="KV cache",
        num_bytes=available.num_bytes,
        how="measured",
        source=f"{source}, printed to {(available.high - available.low) / 2**20:.1f} MiB",
        low_bytes=available.low,
        high_bytes=available.high,
    )
    requested = item
    if requested_bytes is not None:
        words = source if asked is not None else f"total x {share}"
        requested = MemoryItem(
            name="requested", num_bytes=requested_bytes, how="measured", source=words
        )
    return RankMemory(
        rank=rank, total=total, requested=requested, charged=charged, available_kv=item
    )


PLUGIN = LogProfiling
