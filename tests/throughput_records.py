"""Public figures of decoding, each beside the bound of its model and card. facts/throughput.tsv:
tokens a second of all users together, each of so many tokens."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvpipe.answers.speed import speed_of
from kvpipe.front.prepared import prepared_request

FACTS = Path(__file__).parent / "facts" / "throughput.tsv"


@dataclass(frozen=True, kw_only=True)
class Record:
    engine: str
    model: str
    weights: str
    device: str
    users: int
    tokens: int
    per_second: float
    best_per_second: float
    source: str

    @property
    def share(self) -> float:
        return self.per_second / self.best_per_second


def records() -> Iterator[Record]:
    with FACTS.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            users, tokens = int(row["users"]), int(row["tokens"])
            yield Record(
                engine=row["engine"],
                model=row["model"],
                weights=row["weights"],
                device=row["device"],
                users=users,
                tokens=tokens,
                per_second=float(row["tokens_per_second"]),
                best_per_second=_best(row["model"], row["weights"], row["device"], users, tokens),
                source=row["source"],
            )


def _best(model: str, weights: str, device: str, users: int, tokens: int) -> float:
    words = [f"model={model}", f"weights={weights}", f"device={device}", "backend=meta"]
    bound = speed_of(prepared_request([*words, "scheduler.max_model_len=2048"]).prepared).bound
    assert bound is not None
    return users / bound.token_seconds(users, tokens)
