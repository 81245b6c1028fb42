"""A log beside a run: what its own release gives for its memory, and which settings it leaves out.

First the run as it is; where a printed figure does not come out, the settings that logs leave out
are searched (`log_readings`), the fewest changes first, for those that give *every* figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.answers.log_comparison import (
    SEVERAL_RANKS,
    PrintedCapacity,
    Reproduction,
    reproduce,
)
from kvpipe.answers.log_readings import Reading, readings
from kvpipe.engines.base import Engine
from kvpipe.engines.versions import DISTINCT, parse_version, rules_of, written
from kvpipe.errors import KvpipeError
from kvpipe.logs.engine_log import EngineLog
from kvpipe.pipeline import Prepared, prepare
from kvpipe.request.changed import changed
from kvpipe.specs.base import CacheLayer

MOST_SWAP_GIB = 1024
TIED = 1e-6  # relative distances that are equal


@dataclass(frozen=True, kw_only=True)
class LogComparison:
    """What a log printed, what the rules give, and the settings in which the run differs from it.

    by_rules: one reproduction a set of rules with the run's own settings, the release that the log
    (or the user) names alone where one does. Empty for engines whose capacity line is not
    reproduced. found: readings of what the log leaves out that give every printed figure, where no
    set of rules does without one. searched: readings tried for that. taken: settings from the log.
    copies: of a data-parallel engine, each with its own lines.
    """

    engine: str
    version: str | None
    printed: PrintedCapacity
    by_rules: tuple[Reproduction, ...] = ()
    differing: tuple[str, ...] = ()
    found: tuple[Reproduction, ...] = ()
    searched: int = 0
    taken: tuple[str, ...] = ()
    error: str = ""
    copies: tuple[tuple[str, Reproduction], ...] = ()

    @property
    def agreeing(self) -> tuple[Reproduction, ...]:
        return tuple(each for each in self.by_rules if each.agrees) or self.found

    @property
    def nearest(self) -> tuple[Reproduction, ...]:
        """The rules that come nearest by how far off their figures are; all of them, on a tie."""
        least = min((each.apart for each in self.by_rules), default=0.0)
        return tuple(
            each
            for each in self.by_rules
            if each.apart == least or each.apart - least <= TIED  # both may be infinite
        )


def compare_with_log(prepared: Prepared, log: EngineLog, max_model_len: int) -> LogComparison:
    """max_model_len: of the plan; a log that ends in a refusal is compared at the length that it
    was asked for."""
    if log.engine != "vllm":
        return _compared(prepared, log, max_model_len, ())
    versions = _versions(prepared, log)
    length = log.counts.get("max_model_len", max_model_len) if log.refused else max_model_len
    base = [_Case(prepared=prepared, log=log, version=v, length=length) for v in versions]
    found = tuple(case.reproduction(Reading()) for case in base)
    compared = _compared(prepared, log, max_model_len, found)
    compared = replace(compared, copies=tuple(_copies(prepared, log, versions, length)))
    if compared.agreeing or not any(each.terms or each.problem for each in found):
        return compared
    searched, agreeing = _search(prepared, log, base)
    return replace(compared, found=agreeing, searched=searched)


def _compared(
    prepared: Prepared, log: EngineLog, max_model_len: int, found: tuple[Reproduction, ...]
) -> LogComparison:
    return LogComparison(
        engine=log.engine,
        version=log.version,
        printed=printed_in(log),
        by_rules=found,
        differing=tuple(_differing(prepared, log, max_model_len)),
        taken=prepared.from_log,
        error=log.error,
    )


def _versions(prepared: Prepared, log: EngineLog) -> tuple[str, ...]:
    """The release that the log names, else the one that the user does, else one of each set of
    rules."""
    for named in (log.version or "", prepared.config.plugins["engine"].make(Engine).rules.version):
        try:
            return (written(parse_version(_three_parts(named))),)
        except ValueError:
            continue
    return DISTINCT


def _three_parts(version: str) -> str:
    """A banner may say 0.25 alone."""
    return f"{version}.0" if version.count(".") == 1 and version[-1:].isdigit() else version


# --- one reading ---
@dataclass(frozen=True, kw_only=True)
class _Case:
    prepared: Prepared
    log: EngineLog
    version: str
    length: int

    def reproduction(self, reading: Reading) -> Reproduction:
        try:
            made = prepare(self._raw(reading))
        except KvpipeError as error:
            name = f"vllm {self.version}"
            return Reproduction(engine=name, problem=error.lines()[0], supposed=reading.words())
        ranks: list[tuple[CacheLayer, ...]] = [rank.layers for rank in made.resolved.ranks]
        if reading.whole:
            ranks = [tuple({layer.name: layer for rank in ranks for layer in rank}.values())]
        size = self.log.settings.get("engine.layers_per_group")
        rules = replace(rules_of(self.version), layers_per_group=size)
        printed = printed_in(self.log)
        off = made.config.cache.disable_hybrid_kv_cache_manager
        limits = made.resolved.limits.with_length(self.length)
        result = reproduce(ranks, limits, rules, printed, disable_hybrid=off)
        if (swap := _swap_gib(printed, result)) is not None:
            printed = replace(printed, swap_gib=swap)
            result = reproduce(ranks, limits, rules, printed, disable_hybrid=off)
            return replace(result, supposed=(*reading.words(), f"swap space {swap:g} GiB"))
        return replace(result, supposed=reading.words())

    def _raw(self, reading: Reading) -> Mapping[str, Any]:
        engine = {"name": "vllm", "version": self.version}
        own = {"engine": engine, "scheduler.max_model_len": self.length}
        return changed(self.prepared.raw, own | dict(reading.changes))


def _swap_gib(printed: PrintedCapacity, result: Reproduction) -> float | None:
    """The swap space that gives the printed CPU blocks where the default does not and all else
    agrees."""
    wrong = [term.name for term in result.terms if not term.agrees]
    width = result.facts.get("bytes_per_block")
    if wrong != ["swap blocks"] or not width or printed.num_cpu_blocks is None:
        return None
    halves = range(1, 2 * MOST_SWAP_GIB)
    fitting = (h / 2 for h in halves if h * 2**29 // width == printed.num_cpu_blocks)
    return next(fitting, None)


def _search(
    prepared: Prepared, log: EngineLog, cases: Sequence[_Case]
) -> tuple[int, tuple[Reproduction, ...]]:
    """(readings tried, those with the fewest changes that give every printed figure)."""
    settled = frozenset(log.settings) | frozenset(prepared.said)
    tried = 0
    for level in readings(prepared, settled):
        found = []
        for reading in level:
            for case in cases:
                tried += 1
                result = case.reproduction(reading)
                if result.agrees:
                    found.append(result)
        if found:
            return tried, tuple(found)
    return tried, ()


def _copies(
    prepared: Prepared, log: EngineLog, versions: tuple[str, ...], length: int
) -> Iterator[tuple[str, Reproduction]]:
    """Each copy of a data-parallel engine beside its own memory, by the newest rules that agree."""
    for name, mine in log.by_copy().items():
        if not name:
            continue
        results = [
            _Case(prepared=prepared, log=mine, version=v, length=length).reproduction(Reading())
            for v in versions
        ]
        yield name, min(reversed(results), key=lambda each: each.apart)


# --- what differs ---
_COMPARED = {
    "scheduler.max_model_len": "max_model_len",
    "scheduler.max_num_batched_tokens": "max_num_batched_tokens",
    "parallel.tensor_parallel_size": "tp",
    "parallel.pipeline_parallel_size": "pp",
}


def _differing(prepared: Prepared, log: EngineLog, max_model_len: int) -> Iterator[str]:
    resolved = prepared.resolved
    mine = {
        "max_model_len": max_model_len,
        "max_num_batched_tokens": resolved.limits.max_num_batched_tokens,
        "tp": resolved.parallel.tp,
        "pp": resolved.parallel.pp,
    }
    for name, value in mine.items():
        if log.counts.get(name) not in (None, value):
            yield f"{name} {value:,} here, {log.counts[name]:,} in the log"
    for key, theirs in log.settings.items():
        section, _, name = key.partition(".")
        if not name or key in _COMPARED or section == "model" or theirs == "auto":
            continue
        asked = prepared.raw.get(section, {}).get(name)
        if asked not in (None, "auto", theirs) and (name, theirs) != ("cache_dtype", "auto"):
            yield f"{name} {asked} here, {theirs} in the log"


def printed_in(log: EngineLog) -> PrintedCapacity:
    swap = log.settings.get("swap_gib")
    override = log.settings.get("cache.num_gpu_blocks_override")  # whatever the memory holds
    return PrintedCapacity(
        available=None if override else log.least("available_kv"),
        num_gpu_blocks=override or log.counts.get("num_gpu_blocks") or None,
        num_cpu_blocks=log.counts.get("num_cpu_blocks") or None,
        kv_tokens=log.counts.get("kv_tokens"),
        max_concurrency=log.max_concurrency,
        needed=log.needed,
        estimated_max_len=log.counts.get("estimated_max_len"),
        padding=log.padding,
        attention_block=log.counts.get("attention_block"),
        **({"swap_gib": swap} if swap else {}),
    )


def explain(each: Reproduction, printed: PrintedCapacity, num_ranks: int) -> Iterator[str]:
    """Each number that does not agree, and what it stands for instead."""
    if each.problem:
        yield f"{each.engine} could not have started: {each.problem}"
        return
    for term in each.terms:
        if not term.agrees:
            yield f"{term.name}: printed {term.printed}, {each.engine} gives {term.predicted}"
    memory, implied = printed.available, each.implied
    if memory is None or implied is None or each.agrees:
        return
    apart = implied.num_bytes - memory.num_bytes
    words = (
        f"the printed tokens stand for {implied.num_bytes / 2**30:.3f} GiB, the memory line says "
        f"{memory.num_bytes / 2**30:.2f} GiB ({apart / 2**20:+,.1f} MiB)"
    )
    if num_ranks > 1 and abs(apart) < memory.num_bytes * SEVERAL_RANKS:
        words += ": lines of different ranks, which differ by as much"
    yield words
