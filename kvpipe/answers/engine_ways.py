"""An engine that is planned only, and a request that does not fit: changes that were planned with
it and serve the users that were asked for, the least change first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from kvpipe.answers.engine_question import question_of
from kvpipe.answers.remedies import MOST_NAMED, MOST_RANKS
from kvpipe.answers.trials import asked_of_a_copy
from kvpipe.answers.ways_in_words import ways_told
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import PlannedEngine, halvings
from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.pipeline import Prepared, prepare
from kvpipe.request.changed import changed
from kvpipe.specs.edges import largest, smallest
from kvpipe.text.figures import count

Changes = Mapping[str, Any]
_LENGTH, _BYTES = "scheduler.max_model_len", "cache.kv_cache_memory_bytes"
_STEP = 2**24  # bytes by which a cache that is set by hand is raised


@dataclass(frozen=True, kw_only=True)
class EngineAdvice:
    """changes: settings by key; written: as typed. plan: made with them. is_sure: it serves at the
    low end of the memory's estimate, too."""

    changes: Changes
    written: str
    plan: EnginePlan
    is_sure: bool

    @property
    def promise(self) -> str:
        return f"{count(self.plan.users.steady, 'request')} of {self.plan.length:,} tokens at once"


def serves(plan: EnginePlan, asked: int) -> bool:
    """Whether one request can read its prompt, and as many as asked decode at once, on one copy."""
    return plan.users.peak >= 1 and plan.users.steady >= asked


def engine_ways_line(prepared: Prepared) -> tuple[str, tuple[Changes, ...]]:
    """What serves the users that were asked for, in words, and as changes."""
    ways = list(islice(engine_ways(prepared), MOST_NAMED))
    return ways_told(sorted(ways, key=lambda way: not way.is_sure))


def engine_ways(prepared: Prepared) -> Iterator[EngineAdvice]:
    """Changes that were planned and serve, each of another setting: of each the least that surely
    serves, else the least that serves by the best value of the estimate."""
    yield from _surest(lambda surely: _shorter(prepared, surely))
    for scale in _scales(prepared):
        yield from _surest(partial(_least, prepared, scale))


def _surest(find: Callable[[bool], EngineAdvice | None]) -> Iterator[EngineAdvice]:
    if found := find(True) or find(False):
        yield found


def _planned(prepared: Prepared, changes: Changes, surely: bool) -> EngineAdvice | None:
    """The change as advice, if a fresh plan with it serves the users that were asked for; surely:
    at the low end, too."""
    try:
        made = prepare(changed(prepared.raw, changes))
        plan = plan_engine(_engine(made), question_of(made))
    except KvpipeError:
        return None
    if not serves(plan, asked_of_a_copy(made)):
        return None
    is_sure = _serves_at_low_end(made)
    if surely and not is_sure:
        return None
    written = prepared.as_typed(changes)
    return EngineAdvice(changes=dict(changes), written=written, plan=plan, is_sure=is_sure)


def _serves_at_low_end(made: Prepared) -> bool:
    try:
        plan = plan_engine(_engine(made), question_of(made, "low"))
    except DoesNotFit:
        return False
    return serves(plan, asked_of_a_copy(made))


def _engine(prepared: Prepared) -> PlannedEngine:
    engine = prepared.config.plugins["engine"].make(Engine)
    assert isinstance(engine, PlannedEngine)
    return engine


def _shorter(prepared: Prepared, surely: bool) -> EngineAdvice | None:
    """The longest length that serves."""

    def at(length: int) -> EngineAdvice | None:
        return _planned(prepared, {_LENGTH: length}, surely)

    asked = prepared.resolved.limits.max_model_len
    longest = largest(1, asked - 1, lambda length: at(length) is not None)
    return at(longest) if longest is not None else None


def _least(prepared: Prepared, scale: Sequence[Changes], surely: bool) -> EngineAdvice | None:
    """The first of the scale that serves, where more of the same does not hurt."""

    def at(index: int) -> EngineAdvice | None:
        return _planned(prepared, scale[index], surely)

    least = smallest(0, len(scale) - 1, lambda index: at(index) is not None)
    return at(least) if least is not None else None


def _scales(prepared: Prepared) -> Iterator[Sequence[Changes]]:
    """Values of one setting, of growing effect: the users', the engine's own, the bytes', and what
    any engine has: fewer bits of weights, more cards."""
    engine, config = _engine(prepared), prepared.config
    if (requests := config.scheduler.max_num_seqs) != "auto":
        yield [{"scheduler.max_num_seqs": asked_of_a_copy(prepared)}]
        yield [{"scheduler.max_num_seqs": n} for n in halvings(requests)]
    with suppress(KvpipeError):  # of a question that cannot be put
        yield from engine.proposals(question_of(prepared))
    if config.cache.kv_cache_memory_bytes is not None:
        yield [{_BYTES: None}]
        most = prepared.resolved.device.total_bytes - prepared.resolved.weight_bytes_a_rank
        yield [{_BYTES: step * _STEP} for step in range(1, most // _STEP + 1)]
    model = prepared.resolved.model
    if not (model.is_converted or model.quantized_with):
        yield [{"weights": name} for name in engine.smaller_weights]
    for key in engine.more_cards:
        now = getattr(config.parallel, key)
        yield [{f"parallel.{key}": n} for n in (2, 4, 8, 16) if now < n <= MOST_RANKS]
