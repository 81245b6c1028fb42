"""torch's line of a card that ran out -> its figures, whichever engine it ended.

"Tried to allocate 896.00 MiB. GPU 0 has a total capacity of 22.05 GiB of which 60.12 MiB is free.
Process 3911 has 7.30 GiB memory in use. Including non-PyTorch memory, this process has 14.68 GiB
memory in use. Of the allocated memory 14.20 GiB is allocated by PyTorch, ..." (torch 2.1 on;
before: "(GPU 0; 22.05 GiB total capacity; 14.2 GiB already allocated; 60.12 MiB free; ...").
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from kvpipe.logs.figures import number
from kvpipe.text.figures import GIB, MIB

WORDS = "Tried to allocate "
LONGEST = 2000  # characters of the line that are read
_SIZE = r"(\d{1,9}(?:\.\d{1,4})?) (bytes|KiB|MiB|GiB)"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB}
_ASKED = re.compile(WORDS + _SIZE)
_TOTAL = re.compile(rf"total capacity of {_SIZE}|; {_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free|; {_SIZE} free")
_MINE = re.compile(rf"this process has {_SIZE}")
_TORCH = re.compile(rf"{_SIZE} is allocated by PyTorch|; {_SIZE} already allocated")
_PROCESS = re.compile(rf"Process (\d{{1,10}}) has {_SIZE}")


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """Bytes, each None where the line does not say. asked: what there was no room for. mine: held
    by the engine's process. others: by processes that the line names and that are surely not the
    engine's: who is who of processes alone, without torch's own share, is not known."""

    asked: int
    total: int | None = None
    free: int | None = None
    mine: int | None = None
    others: int | None = None


def out_of_memory(line: str, own: Container[int] = ()) -> OutOfMemory | None:
    """Of a line with such words; None where they stand for something else. own: numbers of the
    engine's processes, as its lines say them."""
    start = line.find(WORDS)
    text = line[start : start + LONGEST] if start >= 0 else ""
    asked = _first(_ASKED, text)
    if asked is None:
        return None
    total, free = _first(_TOTAL, text), _first(_FREE, text)
    mine, others = _held(text, total, own)
    return OutOfMemory(asked=asked, total=total, free=free, mine=mine, others=others)


def _held(text: str, total: int | None, own: Container[int]) -> tuple[int | None, int | None]:
    """(the engine's process, the others)."""
    mine, torch = _first(_MINE, text), _first(_TORCH, text)
    if mine is not None and total is not None and mine > total:
        mine = None  # torch's own figure overflows where the driver does not say
    processes = list(_processes(text, own))
    if mine is None and torch is not None and max(processes, default=0) >= torch:
        # In a container a process does not know its own number: it is the one with torch's memory.
        mine = min(each for each in processes if each >= torch)
        processes.remove(mine)
    if mine is None and torch is None:
        return None, None
    # One that cannot stand on the card beside the engine is the engine, by another number.
    room = None if mine is None or total is None else total - mine
    processes = [each for each in processes if room is None or each <= room]
    return mine, sum(processes) if processes else None


def _processes(text: str, own: Container[int]) -> Iterator[int]:
    """Bytes of each process that is not known to be the engine's."""
    for number_of, digits, unit in _PROCESS.findall(text):
        if int(number_of) not in own:
            yield _bytes(digits, unit)


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    digits, unit = (group for group in found.groups() if group is not None)
    return _bytes(digits, unit)


def _bytes(digits: str, unit: str) -> int:
    return round(number(digits) * _UNITS[unit])
