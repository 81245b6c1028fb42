"""What the manager remembers of a request, besides its rows in the tables."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from kvpipe.blocks.hashing import Chain
from kvpipe.specs.base import RequestLimits
from kvpipe.specs.runs import Runs


@dataclass
class LiveRequest:
    """A request with a row. limits: the manager's, with this request's encoder length. chain: keys
    of its tokens (None: not cached by prefix). pending: tokens not yet in the chain. forked: it may
    be about to write into a block that another request reads. drafted: tokens of its last grant
    that may still be accepted."""

    name: Hashable
    row: int
    limits: RequestLimits
    chain: Chain | None
    pending: list[int] = field(default_factory=list)
    forked: bool = False
    drafted: int = 0

    @property
    def known_tokens(self) -> int:
        return self.chain.num_tokens + len(self.pending) if self.chain else 0


@dataclass(frozen=True)
class SwappedRequest:
    """A request whose blocks lie elsewhere. saved: one (held, indices, payload) a group: the row's
    runs, the indices that had a block, and what `save` returned for them."""

    request: LiveRequest
    num_tokens: int
    saved: tuple[tuple[Runs, list[int], Any], ...]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy block src to dst in every layer of the group before the step writes."""

    group: int
    src: int
    dst: int


@dataclass(frozen=True, kw_only=True)
class PrefixStats:
    """Tokens of prompts that were asked of the prefix cache, and that it had."""

    queried_tokens: int
    hit_tokens: int
