"""What kvpipe says of an engine that it plans only, in the words the probes answer in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvpipe.answers.engine_comparison import plan_any
from kvpipe.engines.plan import EnginePlan
from kvpipe.engines.pools import Shared
from kvpipe.errors import KvpipeError
from kvpipe.front.prepared import prepared_request
from tools.live.batching_cases import BatchingCase
from tools.live.llama_cases import LlamaCase

Json = dict[str, Any]
NEWER = ", P (f32): 0.00 MiB"


def planned(overrides: Sequence[str]) -> EnginePlan | str:
    """The plan, or the first line of the refusal."""
    try:
        return plan_any(prepared_request(list(overrides)).prepared)
    except KvpipeError as error:
        return error.lines()[0]


# --- transformers --------------------------------------------------------------------------------
def batching_differences(case: BatchingCase, folder: Path, theirs: Json) -> list[str]:
    """Of its sectors, what a sector holds, requests, and further memories; empty: all is equal."""
    ours = planned(case.overrides(folder))
    if isinstance(ours, str) or not theirs["started"]:
        return _started(ours, theirs)
    (pool,) = ours.pools
    assert isinstance(pool.demand, Shared)
    pairs = {
        "sectors": (pool.count, theirs["sectors"]),
        "bytes of a sector": (pool.unit_bytes, theirs["sector_bytes"]),
        "bytes of the pool": (pool.num_bytes + pool.spare_bytes, theirs["pool_bytes"]),
        "blocks of a sector": (
            sorted(per_unit for _, per_unit in pool.demand.parts),
            sorted(kind["blocks_per_sector"] for kind in theirs["types"].values()),
        ),
        "requests at once": (ours.max_requests, theirs["max_requests"]),
        "requests that find a place": (
            ours.users.steady,
            min(theirs["storable"], theirs["max_requests"]),
        ),
    }
    found = [f"{what}: kvpipe {a}, the engine {b}" for what, (a, b) in pairs.items() if a != b]
    return [*found, *_other_memories(case, folder, theirs)]


def _other_memories(case: BatchingCase, folder: Path, theirs: Json) -> Iterator[str]:
    for other in theirs["others"]:
        made = planned(case.overrides(folder, other["memory"]))
        mine = None if isinstance(made, str) else made.pools[0].count
        if mine != other.get("sectors"):
            yield f"with {other['memory']:,} bytes: kvpipe {mine}, the engine {other}"


# --- llama.cpp -----------------------------------------------------------------------------------
def llama_differences(case: LlamaCase, folder: Path, theirs: Json) -> list[str]:
    """Of its context, and of the lines that it prints, character by character but for spaces."""
    ours = planned(case.overrides(folder))
    if isinstance(ours, str) or not theirs["started"]:
        return _started(ours, theirs)
    found = []
    words = ours.start.command.split()
    pairs = {
        "n_ctx": (int(words[words.index("--ctx-size") + 1]), theirs["n_ctx"]),
        "n_seq_max": (ours.max_requests, theirs["n_seq_max"]),
    }
    found += [f"{what}: kvpipe {a}, the engine {b}" for what, (a, b) in pairs.items() if a != b]
    mine = [_as_built(" ".join(line.split()), theirs) for line in ours.printed]
    if mine != theirs["printed"]:
        found.append(f"kvpipe {mine}, the engine {theirs['printed']}")
    return found


def _as_built(line: str, theirs: Json) -> str:
    """An older build does not count what the last words are about: of these models, nothing."""
    older = not any(NEWER in printed for printed in theirs["printed"])
    return line.replace(NEWER, "") if older else line


def _started(ours: EnginePlan | str, theirs: Json) -> list[str]:
    if isinstance(ours, str):
        # A cache that its own model cannot run on is no start.
        starts = theirs["started"] and theirs.get("generated", True)
        return [f"only the engine starts: {ours}"] if starts else []
    return [f"only kvpipe starts: {theirs['error']}"]
