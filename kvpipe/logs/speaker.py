"""Who wrote a line: the rank, the copy of a data-parallel engine, and the container.

"(Worker_TP1 pid=448)", "(VllmWorker rank=3 pid=7)", "[rank0]:", "[2026-01-01 12:00:00 TP3]",
"(EngineCore_DP1 pid=387)", "(RayWorkerWrapper pid=2, ip=10.0.0.3)", "[pod/NAME/CONTAINER]",
"vllm-1  | ". All that stands before the message counts, however long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST_HEAD = 4096  # characters before a message that are looked at
_RANK = re.compile(r"(?<![A-Za-z])(PP|TP|DP)(\d{1,5})(?=[_ )\]:,])")
_NUMBERED = re.compile(r"\brank[ =]?(\d{1,5})")
_PROCESS = re.compile(
    r"\((?:[A-Za-z]{0,40}Worker\w{0,40})[ _][^()]{0,60}?pid=(\d{1,12})(?:, ip=([\w.:]{1,60}))?"
)
_OWN = re.compile(r"\([A-Za-z]\w{0,60}[^()]{0,60}?[ =_]pid=(\d{1,10})")
_POD = re.compile(r"\[?pod/([^/\]\s]{1,253})/")
_COMPOSE = re.compile(r"([\w.-]{1,80}-\d{1,4}) {1,40}\| ")


@dataclass(frozen=True, kw_only=True)
class Speaker:
    """rank: label of the rank ("" unknown). copy: "DP0" ("" none). source: the container."""

    rank: str = ""
    copy: str = ""
    source: str = ""


def speaker_of(head: str) -> Speaker:
    """head: what stands before the message."""
    head = head[-LONGEST_HEAD:]
    named = dict(_RANK.findall(head))
    source = _source(head)
    copy = f"DP{named['DP']}" if "DP" in named else ""
    if named:
        rank = " ".join(f"{kind}{named[kind]}" for kind in ("DP", "PP", "TP") if kind in named)
        return Speaker(rank=rank, copy=copy, source=source)
    if numbered := _NUMBERED.search(head):
        return Speaker(rank=f"rank {numbered[1]}", source=source)
    if process := _PROCESS.search(head):
        where = f" at {process[2]}" if process[2] else ""
        return Speaker(rank=f"process {process[1]}{where}", source=source)
    return Speaker(source=source)


def process_numbers(line: str) -> Iterator[int]:
    """Of the processes of an engine that a line's head names, as they count themselves."""
    return (int(digits) for digits in _OWN.findall(line[:LONGEST_HEAD]))


def _source(head: str) -> str:
    if pod := _POD.search(head):
        return pod[1]
    compose = _COMPOSE.match(head)
    return compose[1] if compose else ""
