"""The key-value store through which the processes of one run talk: torch's, one post each."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

from kvpipe.errors import ConfigError, KvpipeError, Problem

PATIENCE = 20.0  # seconds; torch itself needs a few to start
_PREFIX = "kvpipe"


class RankLost(KvpipeError):
    """Another rank failed, died, or never came."""

    exit_code = 3


class Store:
    """The processes' common key-value store: each posts once and waits for the others' posts."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        self.port = int(os.environ.get("MASTER_PORT", "29500"))
        # torchrun keeps the store itself; processes started by other means have rank 0 hold it.
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.holds_store = rank == 0 and not agents
        self.deadline = time.monotonic() + PATIENCE

    def __enter__(self) -> Store:
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
        answers = [json.loads(self._get("answer", rank)) for rank in range(self.size)]
        for rank, answer in enumerate(answers):
            if "failed" in answer:
                raise RankLost(f"rank {rank} failed: {answer['failed']}")
        return answers

    def _missing(self, what: str) -> list[int]:
        try:
            return [r for r in range(self.size) if not self._store.check([_key(what, r)])]
        except Exception as error:  # the process that holds the store is gone
            raise _lost([0], "any more") from error

    def _get(self, what: str, rank: int) -> bytes:
        value: bytes = self._store.get(_key(what, rank))
        return value

    def _set(self, what: str, value: str) -> None:
        try:
            self._store.set(_key(what, self.rank), value)
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
