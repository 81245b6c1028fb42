"""Prefix keys of a request whose tokens a trace names by the block: no token is made up or hashed.

    name of prefix block k = H(name of block k-1, its id)      key = name, place in the block
    name of what is its own = H(name of its last block, its number)

So two keys are equal exactly where the ids up to there are, as with keys of the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from kvpipe.blocks import Chain
from kvpipe.simulation.traffic import Traffic

_PLACES = [place.to_bytes(4, "little") for place in range(1 << 12)]


@dataclass
class NamedChain(Chain):
    """Of one request. granule: tokens; divides the trace's prefix blocks. names: of these; own: of
    what is the request's alone. num_named: granules that a name covers."""

    granule: int
    num_tokens: int
    names: list[bytes]
    own: bytes
    places: Sequence[bytes]
    num_named: int

    @classmethod
    def suits(cls, item: Traffic, granule: int) -> bool:
        return item.request.prefix_block % granule == 0

    @classmethod
    def of(cls, item: Traffic, granule: int) -> NamedChain:
        """Of one that knows `item.done` tokens."""
        request = item.request
        name, names = b"", []
        for prefix_id in request.prefix_ids:
            name = sha256(name + prefix_id.to_bytes(16, "little", signed=True)).digest()
            names.append(name)
        own = sha256(name + b"own" + item.number.to_bytes(8, "little")).digest()
        places = _places(request.prefix_block // granule)
        named = min(len(names) * len(places), request.prompt_tokens // granule)
        return cls(granule, item.done, names, own, places, named)

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """The request's own next tokens, whatever their ids."""
        self.num_tokens += len(tokens)

    def keys_at(self, granules: range) -> list[bytes]:
        start, stop, step = granules.start, granules.stop, granules.step
        keys: list[bytes] = []
        while start < min(stop, self.num_named):
            block, place = divmod(start, len(self.places))
            rest = self.places[place : place + min(stop, self.num_named) - start : step]
            name = self.names[block]
            keys += [name + place for place in rest]
            start += len(rest) * step
        keys += [self.own + index.to_bytes(4, "little") for index in range(start, stop, step)]
        return keys

    def copy(self) -> NamedChain:
        return replace(self)


def _places(num: int) -> Sequence[bytes]:
    if num <= len(_PLACES):
        return _PLACES[:num]
    return [place.to_bytes(4, "little") for place in range(num)]
