"""The second contract of an engine: memory -> budget -> pools -> printed lines -> flags.

For engines whose memory is no pool of block ids: each answers four questions, in that order, about
one rank. What all of them share (ranks, users, what is lost) is asked once, in `answers/`. vLLM's
plans are put into the same values there, so that a comparison knows one kind of answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict
from typing_extensions import Self

from kvpipe.engines.base import Engine, EngineRules
from kvpipe.engines.kvpipe import PLUGIN as OWN_RULES
from kvpipe.engines.pools import EnginePool, Mark
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.models.base import ModelGeometry
from kvpipe.specs.base import CacheLayer
from kvpipe.specs.packed_types import WORDS
from kvpipe.text.figures import GIB

# Hundredths of memory that may be advised for a cache: what stays is for steps and graphs.
HIGHEST_SHARE = 95


# Of the memory that is left for a cache, where what stands beside it is an estimate.
End = Literal["low", "best", "high"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """One device. total_bytes, and those that are taken before a model loads (driver, libraries):
    how says whether that is measured or estimated."""

    name: str
    type: str
    total_bytes: int
    context_bytes: int = 0
    how: str = "nominal"
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RankQuestion:
    """One rank of each pipeline stage: what it stores, and the bytes of its weights."""

    layers: tuple[CacheLayer, ...]
    weight_bytes: int
    weights_how: str = "exact"
    weights_source: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an engine is asked. length: tokens of a request. requests, batched_tokens: as the user
    set them (None: the engine's own default). cache_bytes: set by hand, of one rank. activations:
    (tokens, requests of a step) -> bytes, estimated. end: of the memory that all estimates in it
    are for. served_name: what the line that starts it calls the model ("": its own name)."""

    model: ModelGeometry
    served_dtype: str
    cache_dtype: str
    ranks: tuple[RankQuestion, ...]
    card: Card
    length: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    requests: int | None = None
    batched_tokens: int | None = None
    prefix_caching: bool = True
    draft_tokens: int = 0
    draft_layers: int = 0
    cache_bytes: int | None = None
    end: End = "best"
    served_name: str = ""
    activations: Callable[[int, int], int] = field(default=lambda tokens, requests: 0)

    @property
    def model_word(self) -> str:
        """Of the line that starts the engine."""
        return self.served_name or self.model.name

    @property
    def layers(self) -> tuple[CacheLayer, ...]:
        """Of all stages."""
        return tuple(layer for rank in self.ranks for layer in rank.layers)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of a budget. num_bytes: signed as it counts. how: measured | exact | estimated |
    nominal | set, of the value; mark: how the rule is known; source: in words."""

    name: str
    num_bytes: int
    how: str
    mark: Mark
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Bytes for the cache of one rank, and how they came about: the steps add up."""

    steps: tuple[Step, ...]

    @property
    def num_bytes(self) -> int:
        return sum(step.num_bytes for step in self.steps)


@dataclass(frozen=True, kw_only=True)
class Pools:
    """What a budget becomes. max_requests: the engine's own limit on requests at once; context:
    tokens that it lets one request have (None: the model's)."""

    pools: tuple[EnginePool, ...]
    max_requests: int | None = None
    context: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Start:
    """How the engine is started with this plan. files: name -> text, that the command reads."""

    command: str
    mark: Mark
    files: Mapping[str, str] = field(default_factory=dict)


class PlannedOptions(BaseModel):
    """The section `engine`; a planned engine adds its own settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    name: str


class PlannedEngine(Engine):
    """title: the engine and the release whose rules these are. differs: in one line, how its memory
    differs from a pool of blocks for all layers. smaller_weights: options of `weights` that it can
    load, the largest first. more_cards: the splits that it has."""

    title: ClassVar[str]
    source: ClassVar[str]
    differs: ClassVar[str]
    cache_types: ClassVar[tuple[str, ...]] = ()  # that it stores, beside those of 16 bits
    smaller_weights: ClassVar[tuple[str, ...]] = ("fp8", "awq")
    more_cards: ClassVar[tuple[str, ...]] = ("tensor_parallel_size", "pipeline_parallel_size")
    Options: ClassVar[type[BaseModel]] = PlannedOptions

    def __init__(self, options: Any) -> None:
        self.options = options

    @property
    def rules(self) -> EngineRules:
        return OWN_RULES

    def asked(self, question: Question) -> Self:
        """The engine as the question sets it up; ConfigError for a type that it does not store."""
        if question.cache_dtype in WORDS and question.cache_dtype not in self.cache_types:
            valid = ", ".join(("auto", "float16", "bfloat16", *self.cache_types))
            raise ConfigError(
                Problem(
                    "cache.cache_dtype",
                    f"a type that is planned for {self.title}: {valid}",
                    f"'{question.cache_dtype}'",
                )
            )
        return self

    def budget(self, question: Question, rank: RankQuestion) -> Budget:
        """Bytes for the cache, those that the user set or what the steps leave; DoesNotFit where
        that is nothing."""
        if given := by_hand(question):
            return given
        budget = Budget(steps=tuple(self.budget_steps(question, rank)))
        if budget.num_bytes <= 0:
            raise nothing_left(self.title, budget)
        return budget

    @abstractmethod
    def budget_steps(self, question: Question, rank: RankQuestion) -> Iterator[Step]:
        """From the card's memory to the cache's, one line for each thing that takes some."""

    def proposals(self, question: Question) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Settings of its own that may make room, each as values of growing effect. Nobody has
        planned them: who can plan again (`answers/engine_ways.py`) keeps the least that helps."""
        yield from ()

    @abstractmethod
    def pools(self, question: Question, rank: RankQuestion, budget: int) -> Pools:
        """ConfigError for what the engine refuses, or what nobody has read; DoesNotFit where the
        bytes are too few for it to start."""

    @abstractmethod
    def printed(self, question: Question, pools: Pools) -> tuple[str, ...]:
        """The capacity lines of its log, as it words them."""

    @abstractmethod
    def start(self, question: Question, pools: Pools) -> Start:
        """The flags that give this plan."""


def free_at_start(question: Question, name: str, less: str) -> Step:
    """The card without what is taken before a model loads. less: whose memory that is."""
    card = question.card
    return Step(
        name=name,
        num_bytes=card.total_bytes - card.context_bytes,
        how="estimated" if card.context_bytes else card.how,
        mark="read",
        source=f"{card.name}, less {less}",
    )


def weights(rank: RankQuestion, mark: Mark = "read", caveat: str = "") -> Step:
    """The rank's weights, which come out of the card's memory."""
    return Step(
        name="weights",
        num_bytes=-rank.weight_bytes,
        how=rank.weights_how,
        mark=mark,
        source=rank.weights_source + caveat,
    )


def kept_free(free: int, share: float, option: str, mark: Mark = "read") -> Step:
    """All but a share of what is free, by an option of that name."""
    return Step(
        name="kept free",
        num_bytes=int(free * share) - free,
        how="exact",
        mark=mark,
        source=f"1 - {option}={share}",
    )


def by_hand(question: Question) -> Budget | None:
    """The budget where the user set the bytes."""
    if question.cache_bytes is None:
        return None
    return Budget(
        steps=(
            Step(
                name="cache",
                num_bytes=question.cache_bytes,
                how="set",
                mark="checked",
                source="cache.kv_cache_memory_bytes",
            ),
        )
    )


def larger_shares(option: str, share: float) -> Sequence[Mapping[str, Any]]:
    """The engine's option, raised by hundredths up to the highest share that may be advised."""
    hundredths = range(int(100 * share) + 1, HIGHEST_SHARE + 1)
    return [{f"engine.{option}": n / 100} for n in hundredths]


def halvings(number: int, least: int = 1) -> Iterator[int]:
    """Of 8: 4, 2, 1."""
    while (number := number // 2) >= least:
        yield number


def nothing_left(engine: str, budget: Budget) -> DoesNotFit:
    """The refusal where a budget is not above nothing."""
    parts = ", ".join(f"{step.name} {step.num_bytes / GIB:+.2f} GiB" for step in budget.steps)
    return DoesNotFit(
        f"engine.name: {engine} has {budget.num_bytes / GIB:.2f} GiB for its cache: {parts}",
        available_bytes=(budget.num_bytes,),
    )
