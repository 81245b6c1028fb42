"""What a release of an engine would have printed, against what it did print.

A memory figure is rounded, so it stands for a range of block counts. A set of rules reproduces a
log when one count of that range gives every printed number at once: blocks, tokens, concurrency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvpipe.cache.plan import EngineCapacity
from kvpipe.engines.base import EngineRules
from kvpipe.errors import ConfigError, KvpipeError
from kvpipe.logs.figures import Figure
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.stages.grouping.admission import Admission
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.pool import Pool
from kvpipe.stages.grouping.printed import printed as printed_by
from kvpipe.stages.grouping.ranks import plan_ranks
from kvpipe.stages.grouping.union import stored_layers

SWAP_SPACE_GIB = 4.0  # of CPU memory a rank, the default while engines swapped blocks
FEW = 3  # counts that are listed one by one; more are a range
SEVERAL_RANKS = 0.02  # memory of the ranks of one start differs by less than this share


@dataclass(frozen=True, kw_only=True)
class PrintedCapacity:
    """What one start printed. available: the poorest rank's cache memory. None: not printed.

    max_concurrency is rounded to two decimals; padding: (layers, percent) of the warnings;
    attention_block: tokens, where the log says that it grew; swap_gib: of CPU memory a rank.
    """

    available: Figure | None = None
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    needed: Figure | None = None
    estimated_max_len: int | None = None
    padding: tuple[tuple[int, float], ...] = ()
    attention_block: int | None = None
    swap_gib: float = SWAP_SPACE_GIB


@dataclass(frozen=True, kw_only=True)
class Term:
    """One printed number: as printed, the range the rules allow for it, and whether they agree.

    apart: how far off, as a share of what was printed (0 where they agree)."""

    name: str
    printed: str
    predicted: str
    agrees: bool
    apart: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """terms: one a printed number. implied: cache bytes that the printed tokens stand for (None:
    no block count gives them). problem: why these rules make no plan at all. supposed: settings
    that the log leaves out and that were supposed, in words."""

    engine: str
    terms: tuple[Term, ...] = ()
    implied: Figure | None = None
    problem: str = ""
    facts: Mapping[str, int] = field(default_factory=dict)
    supposed: tuple[str, ...] = ()

    @property
    def apart(self) -> float:
        """How far off all of it is; infinite where there is nothing to compare."""
        return sum(term.apart for term in self.terms) if self.terms else float("inf")

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

    @property
    def attention_block(self) -> int:
        """Tokens of the largest block of a layer that is no state."""
        return max(
            (
                group.spec.block_size
                for group in self.pool.groups
                if group.layer_names and not group.layer_spec(group.layer_names[0]).is_state
            ),
            default=0,
        )

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
    ends = list(counts) if len(counts) <= FEW else [counts[0], counts[-1]]
    shown = list(exact[:1]) or ends
    if printed.num_gpu_blocks is not None and printed.available is not None:
        yield _counted("blocks", printed.num_gpu_blocks, ends, len(counts), bool(exact))
    lines = [model.line(n) for n in shown if n]
    if printed.kv_tokens is not None and (printed.available or printed.max_concurrency):
        tokens = [x.num_tokens or 0 for x in lines]
        yield _counted("tokens", printed.kv_tokens, tokens, len(counts), bool(exact))
    if printed.max_concurrency is not None:
        found = [round(x.max_concurrency or 0.0, 2) for x in lines]
        yield _term(
            "concurrency",
            f"{printed.max_concurrency:.2f}",
            _range([f"{x:.2f}" for x in found], len(counts)),
            bool(exact),
            _apart(printed.max_concurrency, found),
        )
    if printed.num_cpu_blocks is not None:
        swapped = int(printed.swap_gib * 2**30) // model.bytes_per_block
        agrees = swapped == printed.num_cpu_blocks
        yield _counted("swap blocks", printed.num_cpu_blocks, [swapped], 1, agrees)
    if printed.attention_block is not None:
        agrees = printed.attention_block == model.attention_block
        yield _counted("block", printed.attention_block, [model.attention_block], 1, agrees)
    yield from _admission_terms(model, printed)
    if printed.padding:
        agrees = set(printed.padding) <= set(model.padding)
        apart = 0.0 if agrees else 1.0
        yield _term("padding", str(list(printed.padding)), str(list(model.padding)), agrees, apart)


def _admission_terms(model: _Model, printed: PrintedCapacity) -> Iterator[Term]:
    """The refusal: what one request needs, and the longest that fits."""
    if printed.needed is not None:
        needed = model.admission(0).required_bytes(model.limits)
        agrees = printed.needed.low <= needed <= printed.needed.high
        shown = f"{printed.needed.num_bytes / 2**30:.2f} GiB"
        apart = 0.0 if agrees else _apart(printed.needed.num_bytes, [needed])
        yield _term("needed", shown, f"{needed / 2**30:.2f} GiB", agrees, apart)
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
        yield _counted("longest", printed.estimated_max_len, [low, high], FEW + 1, agrees)


def _counted(name: str, printed: int, found: Sequence[int], possible: int, agrees: bool) -> Term:
    """possible: how many counts the memory stands for."""
    apart = 0.0 if agrees else _apart(printed, found)
    return _term(name, printed, _range(found, possible), agrees, apart)


def _term(name: str, printed: object, predicted: str, agrees: bool, apart: float) -> Term:
    return Term(
        name=name,
        printed=str(printed),
        predicted=predicted,
        agrees=agrees,
        apart=0.0 if agrees else max(apart, 1e-9),
    )


def _apart(printed: float, found: Sequence[float]) -> float:
    return min((abs(x - printed) for x in found), default=printed) / (abs(printed) or 1)


def _range(values: Sequence[object], possible: int = FEW + 1) -> str:
    """A few possible values one by one; the ends of many."""
    distinct = list(dict.fromkeys(values))
    if not distinct:
        return "nothing"
    if len(distinct) == 1 or possible <= FEW:
        return " or ".join(map(str, distinct))
    return f"{distinct[0]} to {distinct[-1]}"
