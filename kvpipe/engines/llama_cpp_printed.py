"""The lines llama.cpp prints about its caches, as it words and rounds them.

Source: running contexts (docs/live.md); `llama_kv_cache` and `llama_memory_recurrent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpipe.text.figures import MIB


@dataclass(frozen=True, kw_only=True)
class CachePrinted:
    """One cache of cells. cells: of one stream. keys, values: bytes of all layers and streams."""

    cells: int
    layers: int
    sequences: int
    streams: int
    type_k: str
    type_v: str
    keys: int
    values: int

    def line(self) -> str:
        size = (self.keys + self.values) / MIB
        return (
            f"llama_kv_cache: size = {size:7.2f} MiB ({self.cells:6d} cells, {self.layers:3d} "
            f"layers, {self.sequences:2d}/{self.streams} seqs), K ({self.type_k}): "
            f"{self.keys / MIB:7.2f} MiB, V ({self.type_v}): {self.values / MIB:7.2f} MiB"
        )


@dataclass(frozen=True, kw_only=True)
class StatesPrinted:
    """rows: a sequence has one. layers: of the whole model, those without a state among them.
    convolution, scan: bytes of all rows."""

    rows: int
    layers: int
    convolution: int
    scan: int

    def line(self) -> str:
        size = (self.convolution + self.scan) / MIB
        return (
            f"llama_memory_recurrent: size = {size:7.2f} MiB ({self.rows:6d} cells, "
            f"{self.layers:3d} layers, {self.rows:2d} seqs  0 rs_seq), R (f32): "
            f"{self.convolution / MIB:7.2f} MiB, S (f32): {self.scan / MIB:7.2f} MiB, "
            f"P (f32): {0:7.2f} MiB"
        )


def lines(printed: Sequence[CachePrinted | StatesPrinted]) -> tuple[str, ...]:
    return tuple(one.line() for one in printed)
