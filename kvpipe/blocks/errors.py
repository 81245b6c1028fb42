"""What goes wrong when a block pool or manager is used; the state is unchanged after each."""

from __future__ import annotations


class BlockError(ValueError):
    """A wrong call: a block freed twice, a foreign id, a request that is not live."""


class OutOfBlocks(RuntimeError):
    """A right call for which the pool has too few free blocks.

    needed and free are blocks of the whole pool; short_by is what is missing. group: index of the
    first cache group that could not be served (None where a pool was asked directly).
    """

    def __init__(self, needed: int, free: int, group: int | None = None, detail: str = "") -> None:
        self.needed, self.free, self.group = needed, free, group
        self.short_by = needed - free
        noun = "block" if needed == 1 else "blocks"
        super().__init__(
            f"{detail}{needed} {noun} needed, {free} free: short by {self.short_by}"
            + ("; free or swap out a request, or plan more memory" if detail else "")
        )
