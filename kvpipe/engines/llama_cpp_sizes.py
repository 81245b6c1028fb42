"""llama.cpp: a context of cells, its windows' cells, its rows of states; and the most that fits.

Source: `llama-kv-cache*.cpp`, `llama-memory-recurrent.cpp`, `llama-context.cpp` of 0c1e57098.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAD = 256  # cells
MOST_SEQUENCES = 256  # LLAMA_MAX_SEQ


def padded(cells: int) -> int:
    return -(-cells // PAD) * PAD


@dataclass(frozen=True, kw_only=True)
class Context:
    """cells: of one stream. unified: one stream that all sequences share. windows: W -> cells of a
    stream."""

    sequences: int
    cells: int
    unified: bool
    windows: Mapping[int, int]

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.sequences

    @property
    def n_ctx(self) -> int:
        return self.cells * self.streams


def context_of(
    sequences: int,
    length: int,
    windows: tuple[int, ...],
    *,
    unified: bool,
    ubatch: int,
    whole: bool,
) -> Context:
    """The smallest context for that many sequences of `length`. whole: windows keep every token
    (--swa-full)."""
    cells = padded(sequences * length if unified else length)
    together = sequences if unified else 1
    return Context(
        sequences=sequences,
        cells=cells,
        unified=unified,
        windows={
            window: cells if whole else padded(min(cells, window * together + ubatch))
            for window in windows
        },
    )
