"""The servers that a fleet may be made of: devices x tensor x pipeline parallel, each planned."""

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
from kvpipe.pipeline import Prepared, plan_of, prepare
from kvpipe.request.changed import changed, estimated

TENSOR_PARALLEL = (1, 2, 4, 8)
PIPELINE_PARALLEL = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What one server runs on."""

    device: str
    tp: int
    pp: int

    @property
    def cards(self) -> int:
        return self.tp * self.pp

    @property
    def name(self) -> str:
        return f"{self.device} TP {self.tp}" + (f" PP {self.pp}" if self.pp > 1 else "")


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


def shapes(devices: Sequence[str]) -> list[Shape]:
    sizes = product(devices, PIPELINE_PARALLEL, TENSOR_PARALLEL)
    return [Shape(device=device, tp=tp, pp=pp) for device, pp, tp in sizes]


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
    return "the weights or one request do not fit" if error.exit_code == 1 else "not for this model"


def _changed(prepared: Prepared, length: int, shape: Shape) -> dict[str, Any]:
    changes = estimated(prepared.raw) | {
        "device": shape.device,
        "scheduler.max_model_len": length,
        "parallel.tensor_parallel_size": shape.tp,
        "parallel.pipeline_parallel_size": shape.pp,
        "parallel.data_parallel_size": 1,  # replicas are its copies
    }
    return changed(prepared.raw, changes)
