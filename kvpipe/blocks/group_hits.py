"""Which cache group limits a prefix hit: what each could serve by itself, and who cut it.

A prefix is served only where every group serves it. From the longest that any group serves alone,
all lower it together, round by round, to what the poorest of them serves, until none does:

    full attention alone    4,096 tokens        cut 4,096 -> 1,024 by the window
    window alone            1,024 tokens        hit 1,024

What is cut adds up: the longest alone - the hit. Among equals it is the first that is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class GroupHit(NamedTuple):
    """Of one request, in tokens. alone: the longest prefix that the group could serve by itself;
    cut: what its misses took from the longest that any group could."""

    alone: int
    cut: int


def group_hits(num_groups: int, most: int, served: Callable[[int, int], int]) -> list[GroupHit]:
    """served(group, length): the longest prefix within `length` tokens that the group serves; most:
    tokens that may be served."""
    alone = [served(group, most) for group in range(num_groups)]
    cut = [0] * num_groups
    length = max(alone, default=0)
    while (shortest := min(each := [served(g, length) for g in range(num_groups)])) < length:
        cut[each.index(shortest)] += length - shortest
        length = shortest
    return [GroupHit(*of_one) for of_one in zip(alone, cut, strict=True)]
