"""Prefix keys of a request whose tokens a trace names by the block: no token is made up or hashed.

    name of prefix block k = a number for (name of block k-1, its id), the same wherever these are
    key of a granule       = name, cache group, place in the block, as one number
    ... of what is its own = the request's number, place in the request, cache group

So two keys are equal exactly where the ids up to there are, as with keys of the tokens themselves.
Keys of a prompt are whole runs of numbers: they are made, and found, without a call for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kvpipe.blocks import Chain, Key
from kvpipe.simulation.traffic import Traffic

# Keys of a request's own, below zero: so many numbers each. An odd number, so that what requests
# store of their own at the same place does not begin its search at the same place of a table.
_OWN_KEYS = 2**40 + 2**13 + 1


@dataclass
class PrefixNames:
    """Of one replay. granule: tokens between two keys; num_groups: cache groups, whose keys
    differ."""

    granule: int
    num_groups: int
    _name_of: dict[tuple[int, int], int] = field(default_factory=dict)

    def suit(self, item: Traffic) -> bool:
        return item.request.prefix_block % self.granule == 0

    def chain(self, item: Traffic) -> NamedChain:
        """Of a request that knows `item.done` tokens."""
        request = item.request
        places = request.prefix_block // self.granule
        names = self._names(request.prefix_ids)
        return NamedChain(
            granule=self.granule,
            num_tokens=item.done,
            names=names,
            own=-(item.number + 1) * _OWN_KEYS,
            places=places,
            num_groups=self.num_groups,
            num_named=min(len(names) * places, request.prompt_tokens // self.granule),
        )

    def _names(self, prefix_ids: Sequence[int]) -> list[int]:
        name, names, known = -1, [], self._name_of
        for prefix_id in prefix_ids:
            name = known.setdefault((name, prefix_id), len(known))
            names.append(name)
        return names


@dataclass
class NamedChain(Chain):
    """Of one request. granule: tokens; divides the trace's prefix blocks. names: of these; own: the
    first key of what is the request's alone. places: granules of a prefix block. num_named:
    granules that a name covers."""

    granule: int
    num_tokens: int
    names: list[int]
    own: int
    places: int
    num_groups: int
    num_named: int

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """The request's own next tokens, whatever their ids."""
        self.num_tokens += len(tokens)

    def keys_at(self, granules: range, group: int = 0) -> Sequence[Key]:
        start, stop, step = granules.start, granules.stop, granules.step
        groups, places = self.num_groups, self.places
        named = min(stop, self.num_named)
        keys: list[Key] = []
        while start < named:
            block, place = divmod(start, places)
            first = (self.names[block] * groups + group) * places
            keys += range(first + place, first + min(places, place + named - start), step)
            start += -(-(min(places, place + named - start) - place) // step) * step
        if start < stop:
            own = self.own + group
            keys += range(own + start * groups, own + stop * groups, step * groups)
        return keys

    def copy(self) -> NamedChain:
        return replace(self)
