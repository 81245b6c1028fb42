"""Several processes (torchrun), one plan: every rank learns every rank's memory.

`torchrun --nproc-per-node 4 -m kvpipe parallel.tensor_parallel_size=4` starts one process a rank.
Each measures its own memory; `on_every_rank` then gives all of them the same MemoryProfile, so that
the same pure plan follows everywhere and the poorest rank decides. A rank that fails or dies is
named by all others within seconds (store.PATIENCE).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.stages.profiling.base import MemoryProfile, RankMemory
from kvpipe.stages.validation.base import ResolvedParallel


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
    from kvpipe.processes.store import Store

    mine = place(here, parallel)
    with Store(here.rank, here.size) as store:
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
