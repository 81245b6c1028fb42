"""`2xh100` -> a device and how many of it: as many ranks as there are cards."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvpipe.errors import ConfigError, Problem
from kvpipe.front.short_keys import SHORT_KEYS

TP, PP, DP = (SHORT_KEYS[key] for key in ("tp", "pp", "dp"))
COUNTED = re.compile(r"([0-9]+) ?[x*] ?(.+)", re.IGNORECASE)
_MOST_CARDS = 9_999
_STAGES = re.compile(r"[1-9][0-9]{0,3}")


def counted(devices: str) -> tuple[int | None, str]:
    """`2xh100,2xh200` -> 2, "h100,h200"; None where no card is counted."""
    if "+" in devices or "&" in devices:
        knob = "parallel.rank_memory_bytes=[...] gives each rank a size of its own"
        raise ConfigError(Problem("device", "cards that are alike", f"'{devices}'", knob))
    found = [COUNTED.fullmatch(name) for name in devices.split(",")]
    counts = {int(match[1][:9]) if match else None for match in found}
    if counts == {None}:
        return None, devices
    (count, *others) = sorted(counts, key=str)
    if others or count is None:
        knob = "sweep parallel.tensor_parallel_size instead"
        raise ConfigError(Problem("device", "one number of cards", f"'{devices}'", knob))
    if not 0 < count <= _MOST_CARDS:
        raise ConfigError(Problem("device", f"1 to {_MOST_CARDS:,} cards", f"'{devices}'"))
    return count, ",".join(match[2] for match in found if match)


def ranks_said(cards: int, named: Mapping[str, str]) -> list[str]:
    """The ranks that so many cards are, where nobody says them; ConfigError where they are not as
    many as the cards. named: settings of the line by key."""
    stages, copies = (_number(named.get(key, "1")) for key in (PP, DP))
    if TP in named:
        _check_cards(cards, _number(named[TP]) * stages * copies)
        return []
    return [f"{TP}={_ranks(cards, stages, copies)}"]


def _number(said: str) -> int:
    """0 where it is no number, but a sweep's, or wrong."""
    return int(said) if _STAGES.fullmatch(said) else 0


def _ranks(cards: int, stages: int, copies: int) -> int:
    """Tensor parallel over all cards, or over those of each pipeline stage of each copy."""
    parts = max(1, stages) * max(1, copies)
    if cards % parts:
        knob = f"{PP}={stages} needs a multiple of {parts} cards"
        if copies > 1:
            knob = f"PP x DP = {parts} needs a multiple of {parts} cards"
        raise ConfigError(Problem("device", f"cards for {parts} stages", f"{cards} cards", knob))
    return cards // parts


def _check_cards(cards: int, ranks: int) -> None:
    """ConfigError where the ranks that are named are not as many as the cards that are counted."""
    if ranks not in (0, cards):
        knob = f"leave one of the two out, or say {ranks}x"
        raise ConfigError(Problem("device", f"{ranks} cards, as TP x PP x DP", f"{cards}", knob))
