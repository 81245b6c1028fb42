"""The servers that a fleet may be made of, each planned: devices x tensor x pipeline parallel, and
of a model with experts x data x expert parallel, as vLLM serves these: each copy of the attention
has the whole cache of its own requests, and all ranks together one set of experts. (Copies of a
model without experts share nothing: they are replicas.) Cache types, batches and numbers of
sequences are those of the request, or a choice of them that it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from kvpipe.answers.serve_line import line_for
from kvpipe.answers.speed import Speed, speed_of
from kvpipe.answers.unserved import why_none
from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.models.base import ModelGeometry
from kvpipe.pipeline import Prepared, plan_of, prepare
from kvpipe.request.changed import changed, estimated

TENSOR_PARALLEL = (1, 2, 4, 8)
PIPELINE_PARALLEL = (1, 2)
DATA_PARALLEL = (2, 4, 8, 16, 32)
MOST_SHARING = 32  # ranks that one set of experts is spread over


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What one server runs on, and how. dp: copies of the attention; ep: experts are whole, not in
    slices. cache, batch, seqs: cache type, tokens a step, sequences at once (None: as asked)."""

    device: str
    tp: int
    pp: int
    dp: int = 1
    ep: bool = False
    cache: str | None = None
    batch: int | None = None
    seqs: int | None = None

    @property
    def cards(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def words(self) -> str:
        """`TP 2 DP 4 EP`, and what was chosen beside."""
        words = [f"TP {self.tp}"]
        words += [f"PP {self.pp}"] * (self.pp > 1) + [f"DP {self.dp}"] * (self.dp > 1)
        words += ["EP"] * self.ep
        chosen = (
            self.cache,
            self.batch and f"batch {self.batch}",
            self.seqs and f"seqs {self.seqs}",
        )
        return " ".join([*words, *(word for word in chosen if word)])

    @property
    def changes(self) -> dict[str, Any]:
        """What it sets of a request, but for the card."""
        chosen = {
            "cache.cache_dtype": self.cache,
            "scheduler.max_num_batched_tokens": self.batch,
            "scheduler.max_num_seqs": self.seqs,
        }
        return {
            "parallel.tensor_parallel_size": self.tp,
            "parallel.pipeline_parallel_size": self.pp,
            "parallel.data_parallel_size": self.dp,
            "parallel.enable_expert_parallel": self.ep,
        } | {key: value for key, value in chosen.items() if value is not None}

    @property
    def settings(self) -> list[str]:
        """The same as words of a request."""
        words = [f"{key}={str(value).lower()}" for key, value in self.changes.items()]
        return [f"device={self.device}", *words]

    @property
    def name(self) -> str:
        return f"{self.device} {self.words}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What candidates are made of. slices: experts in slices, too, where there are copies, and
    whole ones where there are none: nearly the same memory, and not worth a replay each."""

    devices: Sequence[str]
    caches: Sequence[str | None] = (None,)
    batches: Sequence[int | None] = (None,)
    seqs: Sequence[int | None] = (None,)
    slices: bool = True


@dataclass(frozen=True, kw_only=True)
class Server:
    """One that was planned, for requests of a length. speed: the bound on its steps."""

    shape: Shape
    made: Prepared
    plan: Plan
    speed: Speed

    @property
    def command(self) -> str:
        return line_for(self.made, self.plan)

    @property
    def no_command(self) -> str:
        """Why there is none, "" where there is."""
        return why_none(self.made, self.plan)


@dataclass
class Refusals:
    """Reason -> the names of what it is the reason of; each reason once."""

    named: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, shape: Shape) -> None:
        self.named.setdefault(reason, []).append(shape.name)

    def told(self) -> Mapping[str, tuple[str, ...]]:
        return {reason: tuple(names) for reason, names in self.named.items()}


def unpriced(choice: Choice, prices: Mapping[str, float]) -> tuple[str, ...]:
    """Devices without a price, where others have one: then no cost ranks anything."""
    return tuple(device for device in choice.devices if device not in prices) if prices else ()


def shapes(choice: Choice, model: ModelGeometry) -> list[Shape]:
    settings = list(product(choice.caches, choice.batches, choice.seqs))
    return [
        Shape(device=device, tp=tp, pp=pp, dp=dp, ep=ep, cache=cache, batch=batch, seqs=seqs)
        for device in choice.devices
        for tp, pp, dp, ep in _ranks(choice, model)
        for cache, batch, seqs in settings
    ]


def _ranks(choice: Choice, model: ModelGeometry) -> list[tuple[int, int, int, bool]]:
    """tp, pp, dp, ep. Experts whose numbers are not known apart are not spread."""
    plain = [(tp, pp, 1, False) for pp, tp in product(PIPELINE_PARALLEL, TENSOR_PARALLEL)]
    if not model.experts_per_token or not (model.weights or model.rank_parameters):
        return plain
    copies = [
        (tp, 1, dp, True)
        for dp, tp in product(DATA_PARALLEL, TENSOR_PARALLEL)
        if tp * dp <= MOST_SHARING
    ]
    if not choice.slices:
        return [*plain, *copies]
    whole = [(tp, pp, 1, True) for tp, pp, _, _ in plain if tp > 1]
    return [*plain, *whole, *copies, *((tp, pp, dp, False) for tp, pp, dp, _ in copies)]


def planned(prepared: Prepared, length: int, shape: Shape, efficiency: float) -> Server | str:
    """length: tokens of the longest request. A text: why there is none, in words that name no
    number of the shape."""
    try:
        made = prepare(_changed(prepared, length, shape))
        plan = plan_of(made)
    except KvpipeError as error:
        key = error.lines()[0].partition(":")[0]
        return f"{key}: {_short(error)}"
    return Server(shape=shape, made=made, plan=plan, speed=speed_of(made, efficiency))


def _short(error: KvpipeError) -> str:
    return (
        "the weights or one request do not fit"
        if error.exit_code == 1
        else "not for this model with these settings"
    )


def _changed(prepared: Prepared, length: int, shape: Shape) -> dict[str, Any]:
    changes = estimated(prepared.raw) | {
        "device": shape.device,
        "scheduler.max_model_len": length,
    }
    return changed(prepared.raw, changes | shape.changes)
