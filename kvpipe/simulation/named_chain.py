"""Prefix keys of a request whose tokens a trace names by the block: no token is made up or hashed.

    name of prefix block k = H(name of block k-1, its id)      key = name, place in the block
    name of what is its own = H(name of its last block, its number)

So two keys are equal exactly where the ids up to there are, as with keys of the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from kvpipe.blocks import PrefixChain
from kvpipe.simulation.traffic import Traffic

_PLACES = [place.to_bytes(4, "little") for place in range(1 << 12)]


class NamedChain(PrefixChain):
    """Of one request, which knows `item.done` tokens. granule divides the trace's prefix blocks."""

    _own: bytes

    @classmethod
    def suits(cls, item: Traffic, granule: int) -> bool:
        return item.request.prefix_block % granule == 0

    @classmethod
    def of(cls, item: Traffic, granule: int) -> NamedChain:
        chain, request = cls(granule), item.request
        name, places = b"", _places(request.prefix_block // granule)
        for prefix_id in request.prefix_ids:
            name = sha256(name + prefix_id.to_bytes(16, "little", signed=True)).digest()
            chain.keys += [name + place for place in places]
        del chain.keys[request.prompt_tokens // granule :]
        chain._own = sha256(name + b"own" + item.number.to_bytes(8, "little")).digest()
        chain.num_tokens = item.done
        chain._name_own()
        return chain

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.integer]) -> None:
        """The request's own next tokens, whatever their ids."""
        self.num_tokens += len(tokens)
        self._name_own()

    def _name_own(self) -> None:
        first, stop = len(self.keys), self.num_tokens // self.granule
        self.keys += [self._own + index.to_bytes(4, "little") for index in range(first, stop)]

    def copy(self) -> NamedChain:
        twin = NamedChain(self.granule, self.identity, list(self.keys), self.num_tokens)
        twin._own = self._own
        return twin


def _places(num: int) -> Sequence[bytes]:
    if num <= len(_PLACES):
        return _PLACES[:num]
    return [place.to_bytes(4, "little") for place in range(num)]
