"""Something right -> something like it that may be wrong: values, texts and bytes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

# What a key may hold in a file of somebody else's.
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 10**6, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e300,
    float("nan"), float("inf"), "", "x", "auto", "null", "1", "\x00", "\x1b[31m", "${model}",
    "${oc.env:HOME}", "../..", "/dev/zero", "\ud800", "é" * 300, "a" * 5000, [], [1], [[1]], [None],
    ["x"] * 3, {}, {"a": 1}, {"": {}}, {"hydra": {"job": {}}},
)  # fmt: skip
ODD_BYTES = (b"\x00", b"\xff", b"\xff\xff\xff\xff", b"[" * 300, b"{", b'"', b"\n", b"\r", b"9" * 60)


def values(made: Any, seed: Random, times: int = 3) -> Any:
    """A copy in which some keys are dropped, renamed, or hold something odd."""
    made = copy.deepcopy(made)
    for _ in range(seed.randint(1, times)):
        places = list(_places(made))
        if not places:
            break
        holder, key = seed.choice(places)
        kind = seed.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[seed.choice(("x", "hydra", "", f"{key}{key}"))] = holder.pop(key)
        elif kind == 2:
            there, at = seed.choice(places)
            holder[key] = copy.deepcopy(there[at])
        else:
            holder[key] = copy.deepcopy(seed.choice(ODD_VALUES))
    return made


def content(made: bytes, seed: Random) -> bytes:
    """Cut, with bytes changed, put in or repeated."""
    for _ in range(seed.randint(1, 4)):
        at = seed.randrange(len(made) + 1)
        end = min(len(made), at + seed.choice((0, 1, 4, 8, 100)))
        kind = seed.randrange(5)
        if kind == 0:
            made = made[:at]
        elif kind == 1:
            made = made[:at] + made[at:end] * seed.choice((0, 2, 50)) + made[end:]
        else:
            made = made[:at] + seed.choice(ODD_BYTES) + made[end:]
    return made


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of everything inside."""
    pairs = node.items() if isinstance(node, dict) else ()
    pairs = enumerate(node) if isinstance(node, list) else pairs
    for key, value in list(pairs):
        yield node, key
        yield from _places(value)
