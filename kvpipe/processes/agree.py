"""Several processes (torchrun), one plan: every rank learns every rank's memory.

`torchrun --nproc-per-node 4 -m kvpipe parallel.tensor_parallel_size=4` starts one process a rank.
Each measures its own memory; `on_every_rank` then gives all of them the same MemoryProfile, so that
the same pure plan follows everywhere and the poorest rank decides. A rank that fails or dies is
named by all others within PATIENCE seconds.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import Any

from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.stages.profiling.base import MemoryProfile, RankMemory
from kvpipe.stages.validation.base import ResolvedParallel

PATIENCE = 20.0  # seconds; torch itself needs a few to start
_PREFIX = "kvpipe"


class RankLost(KvpipeError):
    """Another rank failed, died, or never came."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among all: torchrun's RANK and WORLD_SIZE."""

    rank: int
    size: int


def world() -> World | None:
    """None where this process is the only one."""
    size = os.environ.get("WORLD_SIZE", "1")
    rank = os.environ.get("RANK", "")
    if not (size.isdigit() and rank.isdigit()) or int(size) < 2:
        return None
    return World(rank=int(rank), size=int(size))


def place(here: World, parallel: ResolvedParallel) -> int:
    """Which rank of the plan this process is; processes beyond tp x pp are data-parallel copies."""
    ranks = parallel.tp * parallel.pp
    if here.size % ranks or parallel.dp not in (1, here.size // ranks):
        raise ConfigError(
            Problem(
                "parallel",
                f"tensor x pipeline x data parallel sizes that make {here.size} processes",
                f"{parallel.tp} x {parallel.pp} x {parallel.dp}",
            )
        )
    return here.rank % ranks


def on_every_rank(
    measure: Callable[[], MemoryProfile], parallel: ResolvedParallel
) -> MemoryProfile:
    """measure's profile; among several processes the one profile in which each rank's account is
    its own, and the poorest copy's where there are copies. RankLost names a rank that is gone."""
    here = world()
    if here is None:
        return measure()
    mine = place(here, parallel)
    with _Store(here) as store:
        try:
            profile = measure()
            store.post({"available": profile.available_kv_bytes[mine]})
        except KvpipeError as error:
            store.post({"failed": error.lines()[0]})
            raise
        answers = store.collect()
    return merged(profile, answers, parallel.tp * parallel.pp)


def merged(profile: MemoryProfile, answers: list[dict[str, Any]], ranks: int) -> MemoryProfile:
    """Rank i's bytes are the least of processes i, i + ranks, ...; its account else stays."""
    least = [min(answer["available"] for answer in answers[i::ranks]) for i in range(ranks)]
    return replace(
        profile,
        ranks=tuple(_with_bytes(one, n) for one, n in zip(profile.ranks, least, strict=True)),
    )


def _with_bytes(rank: RankMemory, num_bytes: int) -> RankMemory:
    if rank.available_kv_bytes == num_bytes:
        return rank
    source = f"{rank.available_kv.source}; as rank {rank.rank} itself measured it"
    return replace(
        rank,
        available_kv=replace(
            rank.available_kv,
            num_bytes=num_bytes,
            source=source,
            low_bytes=None,
            high_bytes=None,
        ),
    )


class _Store:
    """The processes' common key-value store: each posts once and waits for the others' posts."""

    def __init__(self, here: World) -> None:
        self.here = here
        self.address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        self.port = int(os.environ.get("MASTER_PORT", "29500"))
        # torchrun keeps the store itself; processes started by other means have rank 0 hold it.
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.holds_store = here.rank == 0 and not agents
        self.deadline = time.monotonic() + PATIENCE

    def __enter__(self) -> _Store:
        try:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]
        except ImportError as error:
            raise ConfigError(
                Problem("WORLD_SIZE", "1, or torch installed, through which ranks talk", "no torch")
            ) from error
        if not self.holds_store:
            self._await_store()
        self._store = TCPStore(
            self.address,
            self.port,
            is_master=self.holds_store,
            timeout=timedelta(seconds=PATIENCE),
            wait_for_workers=False,  # who does not come is named, not waited for here
        )
        return self

    def _await_store(self) -> None:
        """Until someone listens there; RankLost when nobody does."""
        while True:
            try:
                with socket.create_connection((self.address, self.port), timeout=1):
                    return
            except OSError as error:
                if time.monotonic() > self.deadline:
                    where = f"{self.address}:{self.port}"
                    raise RankLost(
                        f"rank 0 did not answer at {where} within {PATIENCE:.0f} s"
                    ) from error
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        """Who holds the store leaves last."""
        self._set("left", "1")
        if self.holds_store:
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline and self._missing("left"):
                time.sleep(0.02)

    def post(self, answer: dict[str, Any]) -> None:
        self._set("answer", json.dumps(answer))

    def collect(self) -> list[dict[str, Any]]:
        """Every rank's answer, in order; RankLost with the ranks that failed or did not answer."""
        with _told_to_stop(lambda: self._missing("answer")):
            while missing := self._missing("answer"):
                if time.monotonic() > self.deadline:
                    raise _lost(missing, f"within {PATIENCE:.0f} s")
                time.sleep(0.02)
        answers = [json.loads(self._get("answer", rank)) for rank in range(self.here.size)]
        for rank, answer in enumerate(answers):
            if "failed" in answer:
                raise RankLost(f"rank {rank} failed: {answer['failed']}")
        return answers

    def _missing(self, what: str) -> list[int]:
        try:
            return [r for r in range(self.here.size) if not self._store.check([_key(what, r)])]
        except Exception as error:  # the process that holds the store is gone
            raise _lost([0], "any more") from error

    def _get(self, what: str, rank: int) -> bytes:
        value: bytes = self._store.get(_key(what, rank))
        return value

    def _set(self, what: str, value: str) -> None:
        try:
            self._store.set(_key(what, self.here.rank), value)
        except Exception as error:
            if what != "left":
                raise _lost([0], "any more") from error


def _key(what: str, rank: int) -> str:
    return f"{_PREFIX}/{what}/{rank}"


def _lost(ranks: list[int], when: str) -> RankLost:
    names = ", ".join(f"rank {rank}" for rank in ranks)
    return RankLost(f"{names} did not answer {when}: it failed, or was never started")


@contextmanager
def _told_to_stop(missing: Callable[[], list[int]]) -> Iterator[None]:
    """torchrun ends all processes as soon as one dies: say which one was waited for."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise _lost(missing(), "before this process was told to stop")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
