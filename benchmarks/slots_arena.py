"""The ideal that slots are measured by: an arena of bytes that is compacted for nothing.

Each kind of layer takes blocks of its smallest size without any padding, and any free byte serves
any of them: what an allocator with two ends and free copying could do at best. It answers what the
simulated scheduler asks of a block manager.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

from kvpipe.blocks import OutOfBlocks
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.runs import num_indices


@dataclass
class Arena:
    """widths: bytes of a block of all layers of a spec."""

    limits: RequestLimits
    capacity: int
    widths: Counter[KVCacheSpec]
    prefix_caching: bool = False
    granule: int = 1
    tables: tuple[()] = ()  # it has none
    used: int = 0
    live_requests: dict[object, SimpleNamespace] = field(default_factory=dict)

    def begin_step(self) -> None:
        pass

    def add_request(self, name: object) -> int:
        self.live_requests[name] = SimpleNamespace(stored=0, held=0)
        return 0

    def append(self, names: list[object], tokens: list[object], drafts: int) -> None:
        assert not drafts
        needed = [self._needed(name, 1) for name in names]
        held = [self.live_requests[name].held for name in names]
        self._check(sum(needed) - sum(held))
        for name, most in zip(names, needed, strict=True):
            self._take(name, 1, most)

    def standing_batch(self) -> ArenaBatch:
        return ArenaBatch(self)

    def allocate(self, name: object, new: int) -> None:
        most = self._needed(name, new)
        self._check(most - self.live_requests[name].held)
        self._take(name, new, most)

    def free(self, name: object) -> None:
        self.used -= self.live_requests.pop(name).held

    def _check(self, more: int) -> None:
        if self.used + more > self.capacity:
            raise OutOfBlocks(more, self.capacity - self.used, detail="bytes of an arena: ")

    def _take(self, name: object, new: int, most: int) -> None:
        request = self.live_requests[name]
        self.used += most - request.held
        request.held = most
        request.stored += new

    def _needed(self, name: object, new: int) -> int:
        stored = self.live_requests[name].stored
        return sum(
            width * num_indices(spec.resident(stored, new, self.limits))
            for spec, width in self.widths.items()
        )


@dataclass
class ArenaBatch:
    """Requests that decode together, a token more of each in a step."""

    arena: Arena
    steps: int = 0
    _members: dict[object, int] = field(default_factory=dict)

    def join(self, name: object, token: int, order: int) -> None:
        self._members[name] = order

    def leave(self, name: object) -> None:
        del self._members[name]

    def step(self) -> None:
        names = sorted(self._members, key=self._members.__getitem__)
        self.arena.append(names, names, 0)
        self.steps += 1
