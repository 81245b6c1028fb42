"""A scale for tables, and what tables of a slot size weigh at least: a bound of every plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from functools import partial
from itertools import accumulate

from kvpipe.stages.grouping.slots.kinds import Life


class Scale(ABC):
    """weigh: one table of a life, by the byte of its slot. What was asked is remembered."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}
        self._least: dict[tuple[int, int], int] = {}
        self._pages: dict[int, list[tuple[int, int]]] = {}
        self._light: dict[int, tuple[list[int], list[int]]] = {}
        self._kept: list[Life] = []  # known by their ids, which no other life may get

    @abstractmethod
    def _weigh(self, life: Life, tokens: int) -> int: ...

    def weigh(self, life: Life, tokens: int) -> int:
        key = id(life), tokens
        found = self._known.get(key)
        if found is None:
            self._kept.append(life)
            found = self._known[key] = self._weigh(life, tokens)
        return found

    def least(self, life: Life, slot: int) -> int:
        """Of all tables, in bytes of slots: every layer pays at least its share of the best table,
        of which no layers can fill more than fits into the slot, nor more than there are."""
        key = id(life), slot
        found = self._least.get(key)
        if found is None:
            found = self._least[key] = self._least_of(life, slot)
        return found

    def _least_of(self, life: Life, slot: int) -> int:
        if life.is_fixed:  # one sort of table: whole tables of it
            return fewest_tables(life, slot) * self.weigh(life, life.sizes[0]) * slot
        if len(life.kinds) > 1:
            return min([w * max(slot, whole) for w, whole in self._by_size(life)])
        whole, count = life.kinds[0].count * slot, life.kinds[0].count
        pages, weights = self._lightest(life)
        # So many layers to a slot leave room for pages of this size, and no larger ones.
        room = ((layers, bisect_right(pages, slot // layers)) for layers in range(1, count + 1))
        return min([-(-whole * weights[end - 1] // layers) for layers, end in room if end])

    def _lightest(self, life: Life) -> tuple[list[int], list[int]]:
        """Bytes of a block of one layer, ascending, and the lightest table in blocks of no more."""
        found = self._light.get(id(life))
        if found is None:
            by_page = sorted((page, weight) for weight, page in self._by_size(life))
            weights = accumulate((weight for _, weight in by_page), min)
            found = self._light[id(life)] = [page for page, _ in by_page], list(weights)
        return found

    def _by_size(self, life: Life) -> list[tuple[int, int]]:
        """For each block size the weight of a table and bytes of a block: of one layer or, where
        kinds are several, of all."""
        found = self._pages.get(id(life))
        if found is None:
            one = life.kinds[0].page if len(life.kinds) == 1 else partial(_of_all, life)
            found = [(self.weigh(life, t), one(t)) for t in life.sizes]
            self._pages[id(life)] = found
        return found


def fewest_tables(life: Life, slot: int) -> int:
    """Whole slots that the layers need in their smallest blocks. A layer fits into one."""
    if len(life.kinds) > 1:
        return -(-life.width // slot)
    (kind,) = life.kinds  # whose layers are not cut in two
    return -(-kind.count // max(1, slot // life.narrowest))


def _of_all(life: Life, tokens: int) -> int:
    """Fewest bytes of a block with every layer.

    A layer's share of its life is that of its bytes, so a slot of S bytes holds at most S of those
    bytes, and the whole life weighs at least that much of a table, or one. Where pages are not in
    proportion to their tokens (alignment), the kind that is densest bounds all."""
    smallest = life.sizes[0]
    return min(life.width * kind.page(tokens) // kind.page(smallest) for kind in life.kinds)
