"""What a release of an engine would have printed, against what it did print.

A memory figure is rounded, so it stands for a range of block counts. A set of rules reproduces a
log when one count of that range gives every printed number at once: blocks, tokens, concurrency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvpipe.cache.plan import EngineCapacity
from kvpipe.engines.base import EngineRules
from kvpipe.engines.versions import DISTINCT, parse_version, rules_of
from kvpipe.errors import ConfigError, KvpipeError
from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.figures import Figure
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.stages.grouping.admission import Admission
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.pool import Pool
from kvpipe.stages.grouping.printed import printed as printed_by
from kvpipe.stages.grouping.ranks import plan_ranks
from kvpipe.stages.grouping.union import stored_layers

SWAP_SPACE_BYTES = 4 * 2**30  # of CPU memory a rank, the default while engines swapped blocks
SEVERAL_RANKS = 0.02  # memory of the ranks of one start differs by less than this share


@dataclass(frozen=True, kw_only=True)
class PrintedCapacity:
    """What one start printed. available: the poorest rank's cache memory. None: not printed.

    max_concurrency is rounded to two decimals; padding: (layers, percent) of the warnings.
    """

    available: Figure | None = None
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    needed: Figure | None = None
    estimated_max_len: int | None = None
    padding: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Term:
    """One printed number: as printed, the range the rules allow for it, and whether they agree."""

    name: str
    printed: str
    predicted: str
    agrees: bool


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """terms: one a printed number. implied: cache bytes that the printed tokens stand for (None:
    no block count gives them). problem: why these rules make no plan at all."""

    engine: str
    terms: tuple[Term, ...] = ()
    implied: Figure | None = None
    problem: str = ""
    facts: Mapping[str, int] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        return bool(self.terms) and all(term.agrees for term in self.terms)


def reproduce(
    layers: Sequence[CacheLayer] | Sequence[Sequence[CacheLayer]],
    limits: RequestLimits,
    rules: EngineRules,
    printed: PrintedCapacity,
    *,
    disable_hybrid: bool = False,
) -> Reproduction:
    """Every printed number against what the rules say for these layers and limits."""
    try:
        model = _Model.of(_by_rank(layers), limits, rules, disable_hybrid)
    except KvpipeError as error:
        return Reproduction(engine=rules.name, problem=error.lines()[0])
    counts = list(_counts(model, printed))
    exact = [n for n in counts if model.gives(n, printed)]
    terms = tuple(_terms(model, printed, counts, exact))
    facts = {"bytes_per_block": model.bytes_per_block, "num_groups": len(model.pool.groups)}
    return Reproduction(
        engine=rules.name, terms=terms, implied=_implied(model, printed), facts=facts
    )


def _by_rank(
    layers: Sequence[CacheLayer] | Sequence[Sequence[CacheLayer]],
) -> tuple[tuple[CacheLayer, ...], ...]:
    flat = tuple(layer for layer in layers if isinstance(layer, CacheLayer))
    if len(flat) == len(layers):
        return (flat,)
    return tuple(tuple(rank) for rank in layers if not isinstance(rank, CacheLayer))


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The pool of the rank with the widest blocks, which decides, and its padding warnings."""

    pool: Pool
    rules: EngineRules
    limits: RequestLimits
    padding: tuple[tuple[int, float], ...]

    @classmethod
    def of(
        cls,
        ranks: tuple[tuple[CacheLayer, ...], ...],
        limits: RequestLimits,
        rules: EngineRules,
        disable_hybrid: bool,
    ) -> _Model:
        plenty = 2**60
        request = GroupingRequest(
            ranks=ranks,
            limits=limits,
            memory=(plenty,) * len(ranks),
            rules=rules,
            disable_hybrid_kv_cache_manager=disable_hybrid,
        )
        made = plan_ranks(request, stored_layers(ranks), rules, False, False)
        widest = max(made.admissions, key=lambda each: each.pool.bytes_per_block)
        if not widest.pool.bytes_per_block:
            raise ConfigError(())
        return cls(
            pool=widest.pool,
            rules=rules,
            limits=rules.limits(limits),
            padding=tuple((p.num_layers, round(p.percent, 2)) for p in made.grouping.padding),
        )

    @property
    def bytes_per_block(self) -> int:
        return self.pool.bytes_per_block

    def line(self, num_blocks: int) -> EngineCapacity:
        config = self.pool.config(num_blocks, with_tensors=False)
        return printed_by(config, self.rules, self.limits)

    def admission(self, memory: int) -> Admission:
        return Admission(pool=self.pool, memory=memory)

    def gives(self, num_blocks: int, printed: PrintedCapacity) -> bool:
        """Whether this many blocks give every capacity number that was printed."""
        if printed.num_gpu_blocks not in (None, num_blocks):
            return False
        if printed.kv_tokens is None and printed.max_concurrency is None:
            return True
        if num_blocks == 0:
            return not printed.kv_tokens and not printed.max_concurrency
        line = self.line(num_blocks)
        tokens_agree = printed.kv_tokens in (None, line.num_tokens)
        return tokens_agree and (
            printed.max_concurrency is None
            or f"{line.max_concurrency:.2f}" == f"{printed.max_concurrency:.2f}"
        )


def _counts(model: _Model, printed: PrintedCapacity) -> Iterator[int]:
    """Block counts that the memory figure stands for, or all plausible ones without a figure."""
    if printed.available is not None:
        width = model.bytes_per_block
        yield from range(
            max(0, printed.available.low) // width, max(0, printed.available.high) // width + 1
        )
    elif printed.num_gpu_blocks is not None:
        yield printed.num_gpu_blocks
    elif printed.kv_tokens is not None or printed.max_concurrency is not None:
        around = _count_of(model, printed)
        yield from range(max(1, around - 64), around + 65)


def _count_of(model: _Model, printed: PrintedCapacity) -> int:
    """A block count near which the printed tokens or concurrency lie: both grow with the blocks."""
    low, high = 1, 1
    while high < 2**40 and not _reaches(model.line(high), printed):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _reaches(model.line(middle), printed) else (middle, high)
    return high


def _reaches(line: EngineCapacity, printed: PrintedCapacity) -> bool:
    if printed.kv_tokens is not None:
        return (line.num_tokens or 0) >= printed.kv_tokens
    return (line.max_concurrency or 0.0) >= (printed.max_concurrency or 0.0)


def _implied(model: _Model, printed: PrintedCapacity) -> Figure | None:
    """Cache bytes that the printed tokens, concurrency and blocks stand for together."""
    if printed.kv_tokens is None and printed.num_gpu_blocks is None:
        return None
    free = replace(printed, available=None)
    counts = [n for n in _counts(model, free) if model.gives(n, free)]
    if not counts:
        return None
    low, high = min(counts), max(counts) + 1
    width = model.bytes_per_block
    return Figure(num_bytes=low * width, low=low * width, high=high * width - 1)


def _terms(
    model: _Model, printed: PrintedCapacity, counts: Sequence[int], exact: Sequence[int]
) -> Iterator[Term]:
    ends = sorted({counts[0], counts[-1]}) if counts else []
    shown = list(exact[:1]) or ends
    if printed.num_gpu_blocks is not None and printed.available is not None:
        yield _term("blocks", printed.num_gpu_blocks, _range(ends), bool(exact))
    lines = [model.line(n) for n in shown if n]
    if printed.kv_tokens is not None and (printed.available or printed.max_concurrency):
        yield _term("tokens", printed.kv_tokens, _range([x.num_tokens for x in lines]), bool(exact))
    if printed.max_concurrency is not None:
        found = _range([f"{x.max_concurrency:.2f}" for x in lines])
        yield _term("concurrency", f"{printed.max_concurrency:.2f}", found, bool(exact))
    if printed.num_cpu_blocks is not None:
        swapped = SWAP_SPACE_BYTES // model.bytes_per_block
        agrees = swapped == printed.num_cpu_blocks
        yield _term("swap blocks", printed.num_cpu_blocks, f"{swapped}", agrees)
    yield from _admission_terms(model, printed)
    if printed.padding:
        agrees = set(printed.padding) <= set(model.padding)
        yield _term("padding", str(list(printed.padding)), str(list(model.padding)), agrees)


def _admission_terms(model: _Model, printed: PrintedCapacity) -> Iterator[Term]:
    """The refusal: what one request needs, and the longest that fits."""
    if printed.needed is not None:
        needed = model.admission(0).required_bytes(model.limits)
        agrees = printed.needed.low <= needed <= printed.needed.high
        shown = f"{printed.needed.num_bytes / 2**30:.2f} GiB"
        yield _term("needed", shown, f"{needed / 2**30:.2f} GiB", agrees)
    if printed.estimated_max_len is not None and printed.available is not None:
        low, high = (
            model.admission(memory).longest(model.limits) or 0
            for memory in (printed.available.low, printed.available.high)
        )
        agrees = low <= printed.estimated_max_len <= high and any(
            model.admission(n * model.bytes_per_block).longest(model.limits)
            == printed.estimated_max_len
            for n in _counts(model, printed)
        )
        yield _term("longest", printed.estimated_max_len, _range([low, high]), agrees)


def _term(name: str, printed: object, predicted: str, agrees: bool) -> Term:
    return Term(name=name, printed=str(printed), predicted=predicted, agrees=agrees)


def _range(values: Sequence[object]) -> str:
    if not values:
        return "nothing"
    return f"{values[0]}" if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


# --- a log against a run ------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class LogComparison:
    """What a log printed, what the rules give, and the settings in which the run differs from it.

    by_rules: one reproduction a set of rules, the release that the log names alone where it names
    one. Empty for SGLang, whose capacity line is not reproduced.
    """

    engine: str
    version: str | None
    printed: PrintedCapacity
    by_rules: tuple[Reproduction, ...] = ()
    differing: tuple[str, ...] = ()

    @property
    def agreeing(self) -> tuple[Reproduction, ...]:
        return tuple(each for each in self.by_rules if each.agrees)


def compare_with_log(
    log: EngineLog,
    layers: Sequence[Sequence[CacheLayer]],
    limits: RequestLimits,
    *,
    disable_hybrid: bool,
    settings: Mapping[str, int],
) -> LogComparison:
    """settings: the run's own max_model_len, tp, pp, ..., by the names of EngineLog.counts."""
    printed = _printed_in(log)
    differing = tuple(
        f"{name} {settings[name]:,} here, {log.counts[name]:,} in the log"
        for name in settings
        if log.counts.get(name) not in (None, settings[name])
    )
    rules = [] if log.engine != "vllm" else _rules_for(log)
    return LogComparison(
        engine=log.engine,
        version=log.version,
        printed=printed,
        by_rules=tuple(
            reproduce(layers, limits, each, printed, disable_hybrid=disable_hybrid)
            for each in rules
        ),
        differing=differing,
    )


def _rules_for(log: EngineLog) -> list[EngineRules]:
    """Of the release that the log names, or one release of each set of rules."""
    try:
        return [rules_of(".".join(map(str, parse_version(log.version or ""))))]
    except ValueError:
        return [rules_of(version) for version in DISTINCT]


def _printed_in(log: EngineLog) -> PrintedCapacity:
    return PrintedCapacity(
        available=log.least("available_kv"),
        num_gpu_blocks=log.counts.get("num_gpu_blocks") or None,
        num_cpu_blocks=log.counts.get("num_cpu_blocks") or None,
        kv_tokens=log.counts.get("kv_tokens"),
        max_concurrency=log.max_concurrency,
        needed=log.needed,
        estimated_max_len=log.counts.get("estimated_max_len"),
        padding=log.padding,
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
